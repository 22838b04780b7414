// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/quantized_linear.h"

#include "core/check.h"
#include "torch/linear/rows.h"

namespace transformer_kernels::torch_ops {
namespace {

struct Forward {
  using Arguments = QuantizedLinearForward;
  static constexpr const char* kOp = "quantized_linear";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = quantized_linear_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_aligned_rows),
      tensor("packed", &Arguments::packed, with_even_columns),
      tensor("scales", &Arguments::scales, with_even_columns), parameter("bias", &Arguments::bias));
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, [](const Arguments& a) {
    return rows_like(with_columns(a.x, a.packed.rank > 0 ? a.packed.sizes[0] : 0));
  }));
};

struct BackwardArguments : QuantizedLinearBackward {
  TensorView bias;  // for its dtype
  bool need_dx;
  bool need_dbias;
};

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = "quantized_linear";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = quantized_linear_backward;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_aligned_rows),
      tensor("packed", &Arguments::packed, with_even_columns),
      tensor("scales", &Arguments::scales, with_even_columns), parameter("bias", &Arguments::bias),
      flag("need_dx", &Arguments::need_dx), flag("need_dbias", &Arguments::need_dbias));
  static constexpr auto kResults = std::tuple(
      result("dx", &Arguments::dx,
             [](const Arguments& a) {
               if (!a.need_dx) return TensorView{};
               const std::int64_t bytes = a.packed.rank == 2 ? a.packed.sizes[1] : 0;
               const bool halves = a.packed.dtype == DType::kUInt8;
               return rows_like(with_columns(a.dy, halves ? 2 * bytes : bytes));
             }),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias));
};

using Ops = RawOps<Forward, Backward>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
