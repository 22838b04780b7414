// SPDX-License-Identifier: MIT
#include "transformer_kernels/softmax/softmax.h"

#include "torch/on_array.h"

namespace transformer_kernels::torch_ops {
namespace {

struct Forward {
  using Arguments = SoftmaxForward;
  static constexpr const char* kOp = "softmax";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = softmax_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_even_rows),
      optional("mask", &Arguments::mask, with_broadcast_columns), real("scale", &Arguments::scale),
      flag("causal", &Arguments::causal), flag("log", &Arguments::log));
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, rows_like, &Arguments::x));

  static std::int64_t head_dim(const Arguments&) { return 0; }
  static void prepare(Arguments& a) {
    if (a.mask.defined()) a.mask = broadcast_to(kOp, "mask", a.mask, a.x, "the shape of x");
  }
};

struct Backward {
  using Arguments = SoftmaxBackward;
  static constexpr const char* kOp = "softmax";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = softmax_backward;
  static constexpr auto kLike = &Arguments::y;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                 tensor("y", &Arguments::y, with_even_rows), real("scale", &Arguments::scale),
                 flag("masked", &Arguments::masked), flag("log", &Arguments::log));
  static constexpr auto kResults =
      std::tuple(result("dx", &Arguments::dx, rows_like, &Arguments::y));
};

using Ops = RawOps<Forward, Backward>;
using ArrayOps = RawOps<OnArray<Forward>>;

}  // namespace

TFK_RAW_OPS(Ops)
TFK_RAW_OPS_ON_ARRAY(ArrayOps)

}  // namespace transformer_kernels::torch_ops
