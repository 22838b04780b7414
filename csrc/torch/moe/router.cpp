// SPDX-License-Identifier: MIT
#include "transformer_kernels/moe/router.h"

#include <array>

#include "core/check.h"
#include "core/dispatch.h"
#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

RouterScore score_of(const char* op, std::int64_t number) {
  check_value(number >= 0 && number <= 2, op, ": score is ", number,
              ", expected 0 (softmax), 1 (sigmoid) or 2 (sqrt_softplus)");
  return static_cast<RouterScore>(number);
}

std::int64_t size_or_0(const TensorView& view, int dim) {
  return view.rank > dim ? view.sizes[dim] : 0;
}

TensorView numbers(const TensorView& x, std::int64_t rows, std::int64_t cols) {
  return layout_of(x.device, std::array{rows, cols}, accumulate_dtype(x.dtype));
}

template <class Arguments>
constexpr auto option(auto RouterOptions::*member) {
  return within(&Arguments::options, member);
}

// A list of fields that both passes end with.
template <class A>
constexpr auto score_fields() {
  return std::tuple(choice("score", option<A>(&RouterOptions::score), score_of),
                    flag("renormalize", option<A>(&RouterOptions::renormalize)),
                    real("scale", option<A>(&RouterOptions::scale)),
                    real("jitter", option<A>(&RouterOptions::jitter)),
                    real("noise", option<A>(&RouterOptions::noise)));
}

struct ForwardArguments : MoeRouterForward {
  std::int64_t top_k;
  std::int64_t sequences;
};

struct Forward {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = "moe_router";
  static constexpr const char* kPass = "_forward";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("x", &Arguments::x, with_even_rows),
                 parameter("expert_bias", &Arguments::expert_bias),
                 optional("seed", option<Arguments>(&RouterOptions::seed)),
                 integer("top_k", &Arguments::top_k), integer("groups", &Arguments::groups),
                 integer("top_groups", &Arguments::top_groups),
                 integer("sequences", &Arguments::sequences)),
      score_fields<Arguments>());
  // Without sequences, importance and lse have no elements.
  static constexpr auto kResults = std::tuple(
      result("weights", &Arguments::weights,
             [](const Arguments& a) { return numbers(a.x, size_or_0(a.x, 0), a.top_k); }),
      result("indices", &Arguments::indices,
             [](const Arguments& a) {
               return layout_of(a.x.device, std::array{size_or_0(a.x, 0), a.top_k}, DType::kInt32);
             }),
      result("importance", &Arguments::importance,
             [](const Arguments& a) { return numbers(a.x, a.sequences, size_or_0(a.x, 1)); }),
      result("lse", &Arguments::lse, [](const Arguments& a) {
        const std::int64_t count = a.sequences > 0 ? size_or_0(a.x, 0) : 0;
        return layout_of(a.x.device, std::array{count}, accumulate_dtype(a.x.dtype));
      }));

  static void prepare(const Arguments& a) {
    check_value(a.top_k >= 1, kOp, ": top_k is ", a.top_k, ", expected at least 1");
    check_value(a.sequences >= 0, kOp, ": sequences is ", a.sequences, ", expected 0 or more");
  }
  static void call(const Context& context, Arguments& a) {
    if (a.sequences == 0) a.importance = a.lse = {};
    moe_router_forward(context, a);
  }
  static constexpr auto* kCall = call;
};

struct Backward {
  using Arguments = MoeRouterBackward;
  static constexpr const char* kOp = "moe_router";
  static constexpr const char* kPass = "_backward";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(optional("dweights", &Arguments::dweights, contiguous),
                                optional("dimportance", &Arguments::dimportance, contiguous),
                                optional("dlse", &Arguments::dlse, contiguous),
                                tensor("x", &Arguments::x, with_even_rows),
                                optional("seed", option<Arguments>(&RouterOptions::seed)),
                                tensor("indices", &Arguments::indices, packed_indices)),
                     score_fields<Arguments>());
  static constexpr auto kResults =
      std::tuple(result("dx", &Arguments::dx, rows_like, &Arguments::x));

  static void call(const Context& context, Arguments& a) {
    if (a.dimportance.defined() && a.dimportance.numel() == 0) a.dimportance = a.dlse = {};
    moe_router_backward(context, a);
  }
  static constexpr auto* kCall = call;
};

using Ops = RawOps<Forward, Backward>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
