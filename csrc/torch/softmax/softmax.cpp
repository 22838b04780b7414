// SPDX-License-Identifier: MIT
#include "transformer_kernels/softmax/softmax.h"

#include "torch/on_array.h"

namespace transformer_kernels::torch_ops {
namespace {

struct Forward {
  using Arguments = SoftmaxForward;
  static constexpr const char* kOp = "softmax";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_even_rows),
      optional("mask", &Arguments::mask, with_broadcast_columns), real("scale", &Arguments::scale),
      flag("causal", &Arguments::causal), flag("log", &Arguments::log));
  static std::string name() { return "softmax_forward"; }
  static std::string returns() { return "Tensor y"; }
  static std::int64_t head_dim(const Arguments&) { return 0; }

  static auto run(const Context& context, Arguments& a) {
    if (a.mask.defined()) a.mask = broadcast_to(kOp, "mask", a.mask, a.x, "the shape of x");
    auto y = result(a.y, new_rows_like, a.x);
    softmax_forward(context, a);
    return y;
  }
};

struct Backward {
  using Arguments = SoftmaxBackward;
  static constexpr const char* kOp = "softmax";
  static constexpr auto kLike = &Arguments::y;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                 tensor("y", &Arguments::y, with_even_rows), real("scale", &Arguments::scale),
                 flag("masked", &Arguments::masked), flag("log", &Arguments::log));
  static std::string name() { return "softmax_backward"; }
  static std::string returns() { return "Tensor dx"; }

  static auto run(const Context& context, Arguments& a) {
    auto dx = result(a.dx, new_rows_like, a.y);
    softmax_backward(context, a);
    return dx;
  }
};

using Ops = RawOps<Forward, Backward>;
using ArrayOps = RawOps<OnArray<Forward>>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  Ops::define(m);
  ArrayOps::define(m);
}
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) {
  Ops::implement(m);
  ArrayOps::implement(m);
}
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) Ops::implement(m);
}

}  // namespace transformer_kernels::torch_ops
