// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/quantized_linear.h"

#include "core/check.h"
#include "torch/linear/rows.h"

namespace transformer_kernels::torch_ops {
namespace {

struct Forward {
  using Arguments = QuantizedLinearForward;
  static constexpr const char* kOp = "quantized_linear";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_aligned_rows),
      tensor("packed", &Arguments::packed, with_even_columns),
      tensor("scales", &Arguments::scales, with_even_columns), parameter("bias", &Arguments::bias));
  static std::string name() { return "quantized_linear_forward"; }
  static std::string returns() { return "Tensor y"; }

  static auto run(const Context& context, Arguments& a) {
    auto y =
        result(a.y, new_rows_like, with_columns(a.x, a.packed.rank > 0 ? a.packed.sizes[0] : 0));
    quantized_linear_forward(context, a);
    return y;
  }
};

struct BackwardArguments : QuantizedLinearBackward {
  TensorView bias;  // for its dtype
  bool need_dx;
  bool need_dbias;
};

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = "quantized_linear";
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &QuantizedLinearBackward::dy, with_aligned_rows),
                 tensor("packed", &QuantizedLinearBackward::packed, with_even_columns),
                 tensor("scales", &QuantizedLinearBackward::scales, with_even_columns),
                 parameter("bias", &Arguments::bias), flag("need_dx", &Arguments::need_dx),
                 flag("need_dbias", &Arguments::need_dbias));
  static std::string name() { return "quantized_linear_backward"; }
  static std::string returns() { return "(Tensor dx, Tensor dbias)"; }

  static auto run(const Context& context, Arguments& a) {
    const std::int64_t bytes = a.packed.rank == 2 ? a.packed.sizes[1] : 0;
    const TensorView like = with_columns(a.dy, a.packed.dtype == DType::kUInt8 ? 2 * bytes : bytes);
    const Tensor dx = result_if(a.need_dx, a.dx, like, a.dy);
    const Tensor dbias = result_if(a.need_dbias && a.bias.defined(), a.dbias, a.bias, a.dy);
    quantized_linear_backward(context, a);
    return std::tuple(dx, dbias);
  }
};

using Ops = RawOps<Forward, Backward>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) { Ops::implement(m); }

}  // namespace transformer_kernels::torch_ops
