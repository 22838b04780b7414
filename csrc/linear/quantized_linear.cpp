// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/quantized_linear.h"

#include "core/backends.h"
#include "core/overlap.h"
#include "linear/quantized_problem.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "quantized_linear";
constexpr Backends<QuantizedLinearForwardProblem> kForward{
    .cpu = cpu::quantized_linear_forward,
    .cuda = kHasCuda ? cuda::quantized_linear_forward : nullptr};
constexpr Backends<QuantizedLinearBackwardProblem> kBackward{
    .cpu = cpu::quantized_linear_backward,
    .cuda = kHasCuda ? cuda::quantized_linear_backward : nullptr};

class Operands {
 public:
  // `terms` is the last dimension of x, or -1 where the weight decides it.
  Operands(const Context& context, const TensorView& packed, const TensorView& scales)
      : check_(kOp, context.device),
        packed_(packed),
        scales_(scales) {}

  void check_weight(std::int64_t terms) {
    check_matrix("packed", packed_);
    const bool whole = packed_.dtype == DType::kInt8;
    check_type(whole || packed_.dtype == DType::kUInt8, kOp, ": packed is ", name_of(packed_.dtype),
               ", expected int8 or uint8 (two numbers a byte)");
    check_rank("packed", packed_);
    const std::int64_t numbers = packed_.sizes[1] * (whole ? 1 : 2);
    terms_ = terms < 0 ? numbers : terms;
    check_value(numbers == terms_, kOp, ": packed has ", numbers, " numbers a row, expected ",
                terms_, " (the last dimension of x)");
    check_matrix("scales", scales_);
    check_type(is_floating(scales_.dtype) && scales_.dtype != DType::kFloat64, kOp, ": scales is ",
               name_of(scales_.dtype), ", expected float32, float16 or bfloat16");
    check_rank("scales", scales_);
    const std::int64_t groups = scales_.sizes[1];
    const bool divides = groups == 0 ? terms_ == 0 : terms_ % groups == 0;
    check_value(scales_.sizes[0] == cols() && divides, kOp, ": scales has shape ",
                shape_of(scales_), ", expected (", cols(), ", a divisor of ", terms_,
                ") (the rows of packed, the groups of a row)");
  }

  const ArgumentChecker& check() const { return check_; }
  std::int64_t terms() const { return terms_; }
  std::int64_t cols() const { return packed_.sizes[0]; }

  QuantizedMatrix weight() const {
    return {
        .packed = packed_.data,
        .packed_stride = packed_.strides[0],
        .scales = scales_.data,
        .scales_stride = scales_.strides[0],
        .scales_dtype = scales_.dtype,
        .group = scales_.sizes[1] == 0 ? 1 : std::max<std::int64_t>(terms_ / scales_.sizes[1], 1),
        .bits = packed_.dtype == DType::kInt8 ? 8 : 4};
  }

  // Rows like those of `x`, with `cols` columns.
  void check_rows(const char* name, const TensorView& view, const char* like_name,
                  const TensorView& x, std::int64_t cols) const {
    check_.typed(name, view, x.dtype, like_name);
    TensorView like = x;
    like.sizes[like.rank - 1] = cols;
    check_.same_shape(name, view, like_name, like);
  }
  void check_vector(const char* name, const TensorView& view, const TensorView& x,
                    const char* x_name) const {
    check_.floating(name, view);
    check_.typed_or_float32(name, view, x.dtype, x_name);
    check_.packed(name, view, cols(), "the rows of packed");
    check_value(view.rank == 1, kOp, ": ", name, " has ", view.rank, " dimensions, expected 1");
  }

 private:
  // Present, where the op runs, of any dtype.
  void check_matrix(const char* name, const TensorView& view) const {
    check_.typed(name, view, view.dtype, "");
  }
  static void check_rank(const char* name, const TensorView& view) {
    check_value(view.rank == 2, kOp, ": ", name, " has ", view.rank, " dimensions, expected 2");
    check_value(view.sizes[1] <= 1 || view.strides[1] == 1, kOp, ": ", name,
                " has a last stride of ", view.strides[1], ", expected 1");
  }

  ArgumentChecker check_;
  const TensorView& packed_;
  const TensorView& scales_;
  std::int64_t terms_ = 0;
};

QuantizedLinearForwardProblem check(const Context& context, const QuantizedLinearForward& a) {
  Operands operands(context, a.packed, a.scales);
  operands.check().floating("x", a.x);
  const Shape2d shape = rows_and_cols(a.x);
  operands.check_weight(shape.cols);
  QuantizedLinearForwardProblem p{};
  p.dtype = a.x.dtype;
  p.bias_dtype = a.bias.defined() ? a.bias.dtype : a.x.dtype;
  p.rows = shape.rows;
  p.terms = shape.cols;
  p.cols = operands.cols();
  p.x = {a.x.data, checked_row_stride(kOp, "x", a.x)};
  p.weight = operands.weight();
  if (a.bias.defined()) operands.check_vector("bias", a.bias, a.x, "x");
  p.bias = a.bias.data;
  check_value(a.y.defined(), kOp, ": y is missing");
  operands.check_rows("y", a.y, "the rows of x", a.x, p.cols);
  p.y = {a.y.data, checked_output_stride(kOp, "y", a.y)};
  check_apart(kOp, {{"y", a.y}},
              {{"x", a.x}, {"bias", a.bias}, {"packed", a.packed}, {"scales", a.scales}});
  return p;
}

QuantizedLinearBackwardProblem check(const Context& context, const QuantizedLinearBackward& a) {
  Operands operands(context, a.packed, a.scales);
  operands.check().floating("dy", a.dy);
  operands.check_weight(-1);
  const Shape2d shape = rows_and_cols(a.dy);
  check_value(shape.cols == operands.cols(), kOp, ": dy has ", shape.cols, " columns, expected ",
              operands.cols(), " (the rows of packed)");
  QuantizedLinearBackwardProblem p{};
  p.dtype = a.dy.dtype;
  p.bias_dtype = a.dbias.defined() ? a.dbias.dtype : a.dy.dtype;
  p.rows = shape.rows;
  p.terms = operands.terms();
  p.cols = shape.cols;
  p.dy = {a.dy.data, checked_row_stride(kOp, "dy", a.dy)};
  p.weight = operands.weight();
  if (a.dx.defined()) {
    operands.check_rows("dx", a.dx, "the rows of dy", a.dy, p.terms);
    p.dx = {a.dx.data, checked_output_stride(kOp, "dx", a.dx)};
  }
  if (a.dbias.defined()) operands.check_vector("dbias", a.dbias, a.dy, "dy");
  p.dbias = a.dbias.data;
  check_apart(kOp, {{"dbias", a.dbias}, {"dx", a.dx}},
              {{"dy", a.dy}, {"packed", a.packed}, {"scales", a.scales}});
  return p;
}

template <class Problem>
std::string described(const char* pass, const Problem& p) {
  return concat(pass, " ", name_of(p.dtype), " ", p.rows, "x", p.terms, "x", p.cols, " int",
                p.weight.bits, " in groups of ", p.weight.group);
}

}  // namespace

std::string describe(const QuantizedLinearForwardProblem& p) {
  return concat(described("forward", p), p.bias != nullptr ? " + bias" : "");
}

std::string describe(const QuantizedLinearBackwardProblem& p) {
  return concat(described("backward", p), p.dx.data != nullptr ? " dx" : "",
                p.dbias != nullptr ? " dbias" : "");
}

void quantized_linear_forward(const Context& context, const QuantizedLinearForward& arguments) {
  const QuantizedLinearForwardProblem problem = check(context, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on(kOp, kForward, context, problem);
}

void quantized_linear_backward(const Context& context, const QuantizedLinearBackward& arguments) {
  run_on(kOp, kBackward, context, check(context, arguments));
}

}  // namespace transformer_kernels
