// SPDX-License-Identifier: MIT
// A step on the CPU: a pass that sums the squares of gradients where their norm is wanted, and one
// that updates. Tensors are cut into pieces whose bounds do not depend on the threads; sums of
// pieces are added in their order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/rounding.h"
#include "optimizer/kernels.h"

namespace transformer_kernels::cpu {
namespace {

const OptimizerKernels& kernels() {
  constexpr const OptimizerKernels* kTables[] = TFK_PER_ISA(optimizer_kernels);
  return *kTables[static_cast<int>(isa())];
}

double number_of(const TensorView& view) {
  if (view.dtype == DType::kFloat64) return *static_cast<const double*>(view.data);
  return *static_cast<const float*>(view.data);
}

void put_number(const TensorView& view, double value) {
  if (view.dtype == DType::kFloat64) {
    *static_cast<double*>(view.data) = value;
  } else {
    *static_cast<float*>(view.data) = static_cast<float>(value);
  }
}

class Step {
 public:
  Step(const Context& context, const OptimizerProblem& p)
      : context_(context),
        p_(p),
        unscale_(p.options.grad_scale.defined() ? 1 / number_of(p.options.grad_scale) : 1),
        first_piece_memory_(context, (p.tensors.size() + 1) * sizeof(std::int64_t)),
        first_piece_(static_cast<std::int64_t*>(first_piece_memory_.data())) {
    std::int64_t pieces = 0;
    for (std::size_t i = 0; i < p.tensors.size(); ++i) {
      first_piece_[i] = pieces;
      pieces += divide_up(p.tensors[i].param.numel(), kOptimizerPiece);
    }
    first_piece_[p.tensors.size()] = pieces;
  }

  void run() {
    double clip = 1;
    bool skips = p_.options.found_inf.defined() && number_of(p_.options.found_inf) != 0;
    if (p_.wants_norm()) {
      const double norm = std::sqrt(sum_of_squares()) * std::abs(unscale_);
      if (p_.options.norm.defined()) put_number(p_.options.norm, norm);
      skips |= p_.options.skips_nonfinite && !std::isfinite(norm);
      if (p_.options.max_norm > 0) clip = clip_of(p_.options.max_norm, norm);
    }
    if (!skips) update(clip);
  }

 private:
  // Calls body(tensor, piece, begin, end) for each piece.
  template <class Body>
  void for_pieces(Body&& body) const {
    const std::int64_t* const first = first_piece_;
    const std::int64_t* const last = first + p_.tensors.size();
    parallel_for(context_, *last, rows_per_range(kOptimizerPiece),
                 [&](std::int64_t from, std::int64_t to) {
                   std::size_t i = std::upper_bound(first, last, from) - first - 1;
                   for (std::int64_t piece = from; piece < to; ++piece) {
                     while (piece >= first[i + 1]) ++i;
                     const std::int64_t begin = (piece - first[i]) * kOptimizerPiece;
                     const std::int64_t count = p_.tensors[i].param.numel();
                     body(i, piece, begin, std::min(begin + kOptimizerPiece, count));
                   }
                 });
  }

  double sum_of_squares() const {
    const std::int64_t pieces = first_piece_[p_.tensors.size()];
    const AlignedScratch memory(context_, pieces * sizeof(double));
    auto* const sums = static_cast<double*>(memory.data());
    for_pieces([&](std::size_t i, std::int64_t piece, std::int64_t begin, std::int64_t end) {
      const TensorView& grad = p_.tensors[i].grad;
      const auto* const x = static_cast<const std::byte*>(grad.data) + begin * size_of(grad.dtype);
      sums[piece] = kernels().sum_of_squares[static_cast<int>(grad.dtype)](x, end - begin);
    });
    double total = 0;
    for (std::int64_t piece = 0; piece < pieces; ++piece) total += sums[piece];
    return total;
  }

  OptimizerNumbers numbers_of(const AdamWGroup& group, double step, double clip) const {
    const bool is_adamw = p_.rule == OptimizerRule::kAdamW;
    const double sign = group.maximize ? -1 : 1;
    const double lr = group.rate.defined() ? number_of(group.rate) : group.lr;
    return {.unscale = unscale_,
            .factor = sign * clip * (p_.options.unscales_gradients ? 1 : unscale_),
            .decay = 1 - lr * group.weight_decay,
            .step_size = is_adamw ? lr / (1 - std::pow(group.beta1, step)) : lr,
            .beta1 = group.beta1,
            .beta2 = group.beta2,
            .root_factor = is_adamw ? 1 / std::sqrt(1 - std::pow(group.beta2, step)) : 1,
            .eps = group.eps};
  }

  // Counts the step of a tensor.
  OptimizerRow row_of(const OptimizerTensor& tensor, double clip) const {
    put_number(tensor.step, number_of(tensor.step) + 1);
    const double step = number_of(tensor.step);
    return {.param = tensor.param.data,
            .grad = tensor.grad.data,
            .exp_avg = tensor.exp_avg.data,
            .exp_avg_sq = tensor.exp_avg_sq.data,
            .max_exp_avg_sq = tensor.max_exp_avg_sq.data,
            .master = static_cast<float*>(tensor.master.data),
            .exp_avg_scales = static_cast<float*>(tensor.exp_avg_scales.data),
            .exp_avg_sq_scales = static_cast<float*>(tensor.exp_avg_sq_scales.data),
            .param_dtype = tensor.param.dtype,
            .grad_dtype = tensor.grad.dtype,
            .state_dtype = tensor.exp_avg.dtype,
            .number = tensor.number,
            .numbers = numbers_of(p_.groups[tensor.group], step, clip),
            .unscales_gradient = p_.options.unscales_gradients,
            .rounds_states_randomly = p_.rounds_states_randomly(tensor),
            .rounds_param_randomly = p_.rounds_param_randomly(tensor),
            .seed = p_.options.seed,
            .step = random_step(step)};
  }

  void update(double clip) const {
    const AlignedScratch memory(context_, p_.tensors.size() * sizeof(OptimizerRow));
    auto* const rows = static_cast<OptimizerRow*>(memory.data());
    for (std::size_t i = 0; i < p_.tensors.size(); ++i) {
      new (&rows[i]) OptimizerRow(row_of(p_.tensors[i], clip));
    }
    const auto& steps = p_.rule == OptimizerRule::kAdamW ? kernels().adamw : kernels().lion;
    for_pieces([&](std::size_t i, std::int64_t, std::int64_t begin, std::int64_t end) {
      steps[rows[i].param_dtype != DType::kFloat64](rows[i], begin, end);
    });
  }

  const Context& context_;
  const OptimizerProblem& p_;
  double unscale_;
  AlignedScratch first_piece_memory_;
  std::int64_t* first_piece_;  // of each tensor, and then their number
};

}  // namespace

void optimizer_step(const Context& context, const OptimizerProblem& p) {
  log_cpu_kernel(p.op, p);
  Step(context, p).run();
}

}  // namespace transformer_kernels::cpu
