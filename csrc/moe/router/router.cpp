// SPDX-License-Identifier: MIT
#include "transformer_kernels/moe/router.h"

#include <algorithm>
#include <cmath>

#include "core/backends.h"
#include "core/dispatch.h"
#include "core/overlap.h"
#include "moe/router/problem.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "moe_router";

// Experts that are none would be written where no logit is.
void check_indices(const Context&, const MoeRouterBackwardProblem& p) {
  for (std::int64_t i = 0; i < p.tokens * p.chosen; ++i) {
    check_value(p.indices[i] >= 0 && p.indices[i] < p.experts, kOp, ": indices has ", p.indices[i],
                ", expected one of [0, ", p.experts - 1, "]");
  }
}

constexpr Backends<MoeRouterForwardProblem> kForward{
    .cpu = cpu::moe_router_forward, .cuda = kHasCuda ? cuda::moe_router_forward : nullptr};
constexpr Backends<MoeRouterBackwardProblem> kBackward{
    .cpu = cpu::moe_router_backward,
    .cuda = kHasCuda ? cuda::moe_router_backward : nullptr,
    .numbers = check_indices};

// Checks the operands of one call against its logits.
class Operands {
 public:
  Operands(const Context& context, const TensorView& x)
      : context_(context),
        check_(kOp, context.device),
        x_(x) {
    check_.floating("x", x);
    check_value(x.rank == 2, kOp, ": x has ", x.rank, " dimensions, expected 2");
    check_value(x.sizes[1] > 0 && x.sizes[1] <= kMostExperts, kOp, ": x has ", x.sizes[1],
                " columns, expected 1 to ", kMostExperts, " experts");
    check_value(x.sizes[0] <= kMostRoutedTokens, kOp, ": x has ", x.sizes[0],
                " rows, expected at most ", kMostRoutedTokens);
  }

  const ArgumentChecker& check() const { return check_; }

  void common(RouterProblem& p, const RouterOptions& o, const TensorView& indices) const {
    p.dtype = x_.dtype;
    p.tokens = x_.sizes[0];
    p.experts = static_cast<int>(x_.sizes[1]);
    p.x = {x_.data, checked_row_stride(kOp, "x", x_)};
    check_.typed("indices", indices, DType::kInt32, "the dtype of indices");
    check_value(indices.rank == 2 && indices.sizes[0] == p.tokens, kOp, ": indices has shape ",
                shape_of(indices), ", expected (", p.tokens, ", top_k)");
    p.chosen = static_cast<int>(indices.sizes[1]);
    check_value(p.chosen >= 1 && p.chosen <= std::min(kMostChosen, p.experts), kOp, ": top_k is ",
                p.chosen, ", expected 1 to ", std::min(kMostChosen, p.experts), " (of ", p.experts,
                " experts)");
    check_.packed("indices", indices, p.tokens * p.chosen, "the tokens of x times top_k");
    p.score = o.score;
    p.renormalize = o.renormalize;
    check_value(std::isfinite(o.scale), kOp, ": scale is ", o.scale, ", expected a finite number");
    p.scale = o.scale;
    check_value(o.jitter >= 0 && o.jitter <= 1, kOp, ": jitter is ", o.jitter,
                ", expected a number from 0 to 1");
    p.jitter = o.jitter;
    check_value(o.noise >= 0, kOp, ": noise is ", o.noise, ", expected a number of 0 or more");
    check_value(std::isfinite(o.noise), kOp, ": noise is ", o.noise, ", expected a finite number");
    p.noise = o.noise;
    p.sequences = 1;
    if (p.is_noisy()) p.draw = draw(o.seed);
  }

  // Numbers in the arithmetic's type.
  void* numbers(const char* name, const TensorView& view, std::int64_t rows,
                std::int64_t cols) const {
    if (!view.defined()) return nullptr;
    check_.typed(name, view, accumulate_dtype(x_.dtype), "the dtype of the arithmetic");
    check_value(view.rank == 2 && view.sizes[0] == rows && view.sizes[1] == cols, kOp, ": ", name,
                " has shape ", shape_of(view), ", expected (", rows, ", ", cols, ")");
    check_.packed(name, view, rows * cols, "its shape");
    return view.data;
  }
  void* of_tokens(const char* name, const TensorView& view) const {
    if (!view.defined()) return nullptr;
    check_.typed(name, view, accumulate_dtype(x_.dtype), "the dtype of the arithmetic");
    check_.packed(name, view, x_.sizes[0], "the rows of x");
    return view.data;
  }
  // Sums of tokens, a row for each sequence.
  void* of_sequences(RouterProblem& p, const char* name, const TensorView& view) const {
    if (!view.defined()) return nullptr;
    p.sequences = view.rank == 2 ? view.sizes[0] : 0;
    check_value(p.sequences > 0 && p.tokens % p.sequences == 0, kOp, ": sequences is ", p.sequences,
                ", expected a divisor of ", p.tokens, " (the rows of x)");
    return numbers(name, view, p.sequences, p.experts);
  }

 private:
  RouterDraw draw(const TensorView& seed) const {
    check_value(seed.defined(), kOp, ": seed is missing, expected one for jitter and noise");
    const bool on_cpu = seed.device.type == DeviceType::kCpu;
    const bool fits = (on_cpu || seed.device == context_.device) && seed.dtype == DType::kInt64 &&
                      seed.rank == 1 && seed.sizes[0] == 2 && seed.strides[0] == 1;
    check_value(fits, kOp,
                ": seed is not a seed and an offset, expected 2 int64 on the CPU or beside x");
    const auto* const numbers = static_cast<const std::uint64_t*>(seed.data);
    if (!on_cpu || context_.checks_only) return {0, 0, numbers};
    return {numbers[0], numbers[1], nullptr};
  }

  const Context& context_;
  ArgumentChecker check_;
  const TensorView& x_;
};

void check_groups(const MoeRouterForwardProblem& p, std::int64_t groups, std::int64_t top_groups) {
  check_value(groups >= 1 && groups <= kMostGroups && p.experts % groups == 0, kOp, ": groups is ",
              groups, ", expected 1 to ", kMostGroups, ", a divisor of ", p.experts, " experts");
  check_value(groups == 1 || p.experts <= kMostGroupedExperts, kOp, ": groups is ", groups,
              ", expected 1 for more than ", kMostGroupedExperts, " experts");
  check_value(top_groups >= 1 && top_groups <= groups, kOp, ": top_groups is ", top_groups,
              ", expected 1 to ", groups, " (groups)");
  check_value(top_groups * (p.experts / groups) >= p.chosen, kOp, ": top_groups is ", top_groups,
              ", expected groups of ", p.chosen, " experts or more (top_k)");
}

MoeRouterForwardProblem check(const Context& context, const MoeRouterForward& a) {
  const Operands operands(context, a.x);
  MoeRouterForwardProblem p{};
  operands.common(p, a.options, a.indices);
  p.indices = static_cast<std::int32_t*>(a.indices.data);
  p.bias_dtype = a.x.dtype;
  if (a.expert_bias.defined()) {
    operands.check().floating("expert_bias", a.expert_bias);
    operands.check().typed_or_float32("expert_bias", a.expert_bias, a.x.dtype, "x");
    operands.check().packed("expert_bias", a.expert_bias, p.experts, "the last dimension of x");
    check_value(a.expert_bias.rank == 1, kOp, ": expert_bias has ", a.expert_bias.rank,
                " dimensions, expected 1");
    p.bias = a.expert_bias.data;
    p.bias_dtype = a.expert_bias.dtype;
  }
  check_groups(p, a.groups, a.top_groups);
  p.groups = static_cast<int>(a.groups);
  p.top_groups = static_cast<int>(a.top_groups);
  check_value(a.weights.defined(), kOp, ": weights is missing");
  p.weights = operands.numbers("weights", a.weights, p.tokens, p.chosen);
  p.importance = operands.of_sequences(p, "importance", a.importance);
  p.lse = operands.of_tokens("lse", a.lse);
  check_apart(kOp,
              {{"weights", a.weights},
               {"indices", a.indices},
               {"importance", a.importance},
               {"lse", a.lse}},
              {{"x", a.x}, {"expert_bias", a.expert_bias}});
  return p;
}

MoeRouterBackwardProblem check(const Context& context, const MoeRouterBackward& a) {
  const Operands operands(context, a.x);
  MoeRouterBackwardProblem p{};
  operands.common(p, a.options, a.indices);
  p.indices = static_cast<const std::int32_t*>(a.indices.data);
  p.dweights = operands.numbers("dweights", a.dweights, p.tokens, p.chosen);
  p.dimportance = operands.of_sequences(p, "dimportance", a.dimportance);
  p.dlse = operands.of_tokens("dlse", a.dlse);
  operands.check().typed("dx", a.dx, a.x.dtype, "the dtype of x");
  operands.check().same_shape("dx", a.dx, "x", a.x);
  p.dx = {a.dx.data, checked_output_stride(kOp, "dx", a.dx)};
  check_apart(kOp, {{"dx", a.dx}},
              {{"x", a.x},
               {"dweights", a.dweights},
               {"dimportance", a.dimportance},
               {"dlse", a.dlse},
               {"indices", a.indices}});
  return p;
}

std::string described(const char* pass, const RouterProblem& p) {
  constexpr const char* kScores[] = {"softmax", "sigmoid", "sqrt-softplus"};
  return concat(pass, " ", name_of(p.dtype), " ", p.tokens, "x", p.experts, " top ", p.chosen, " ",
                kScores[static_cast<int>(p.score)], p.is_noisy() ? " noisy" : "");
}

}  // namespace

std::string describe(const MoeRouterForwardProblem& p) {
  return concat(described("forward", p), p.groups > 1 ? " groups" : "");
}

std::string describe(const MoeRouterBackwardProblem& p) { return described("backward", p); }

void moe_router_forward(const Context& context, const MoeRouterForward& arguments) {
  const MoeRouterForwardProblem problem = check(context, arguments);
  if (problem.tokens > 0 || problem.importance != nullptr) run_on(kOp, kForward, context, problem);
}

void moe_router_backward(const Context& context, const MoeRouterBackward& arguments) {
  const MoeRouterBackwardProblem problem = check(context, arguments);
  if (problem.tokens > 0) run_on(kOp, kBackward, context, problem);
}

}  // namespace transformer_kernels
