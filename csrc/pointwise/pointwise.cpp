// SPDX-License-Identifier: MIT
#include "transformer_kernels/pointwise/pointwise.h"

#include <array>
#include <initializer_list>

#include "core/backends.h"
#include "core/overlap.h"
#include "pointwise/problem.h"

namespace transformer_kernels {
namespace {

constexpr Backends<PointwiseForwardProblem> kForward{
    .cpu = cpu::pointwise_forward, .cuda = kHasCuda ? cuda::pointwise_forward : nullptr};
constexpr Backends<PointwiseBackwardProblem> kBackward{
    .cpu = cpu::pointwise_backward, .cuda = kHasCuda ? cuda::pointwise_backward : nullptr};

DType first_dtype(DType otherwise, std::initializer_list<const TensorView*> views) {
  for (const TensorView* view : views) {
    if (view->defined()) return view->dtype;
  }
  return otherwise;
}

// Checks the operands of one call one by one, and notes where they lie.
class Operands {
 public:
  Operands(const Context& context, Pointwise op, const TensorView& x, DType bias_dtype)
      : op_(name_of(op)),
        gated_(is_gated(op)),
        check_(op_, context.device),
        x_(x),
        bias_dtype_(bias_dtype) {
    check_.floating(x_name(), x);
    shape_ = rows_and_cols(x);
  }

  const char* x_name() const { return gated_ ? "gate" : "x"; }
  const char* dx_name() const { return gated_ ? "dgate" : "dx"; }
  Shape2d shape() const { return shape_; }

  Rows input(const char* name, const TensorView& view) {
    return noted(name, {view.data, checked_stride(name, view, checked_row_stride)}, inputs_);
  }
  Rows output(const char* name, const TensorView& view) {
    return noted(name, {view.data, checked_stride(name, view, checked_output_stride)}, outputs_);
  }
  // An operand of gated ops: present in these, absent in others.
  Rows gated_input(const char* name, const TensorView& view) {
    return wanted(name, view) ? input(name, view) : Rows{};
  }
  Rows gated_output(const char* name, const TensorView& view) {
    return wanted(name, view) ? output(name, view) : Rows{};
  }

  const void* bias(const char* name, const TensorView& view) {
    return parameter(name, view, inputs_);
  }
  const void* gated_bias(const char* name, const TensorView& view) {
    expect_gated(name, view);
    return bias(name, view);
  }
  void* bias_gradient(const char* name, const TensorView& view) {
    return parameter(name, view, outputs_);
  }
  void* gated_bias_gradient(const char* name, const TensorView& view) {
    expect_gated(name, view);
    return bias_gradient(name, view);
  }

  void check_overlaps() const {
    for (int i = 0; i < outputs_.count; ++i) {
      for (int j = 0; j < i; ++j) check_outputs_apart(op_, outputs_.at[j], outputs_.at[i]);
      for (int j = 0; j < inputs_.count; ++j) {
        check_output_over_input(op_, outputs_.at[i], inputs_.at[j]);
      }
    }
  }

 private:
  struct Extents {
    std::array<Extent, 5> at;
    int count = 0;
  };

  template <class Stride>
  std::int64_t checked_stride(const char* name, const TensorView& view, Stride&& stride) const {
    check_.typed(name, view, x_.dtype, gated_ ? "the dtype of gate" : "the dtype of x");
    check_.same_shape(name, view, x_name(), x_);
    return stride(op_, name, view);
  }

  Rows noted(const char* name, Rows matrix, Extents& extents) const {
    const std::int64_t bytes = size_of(x_.dtype);
    extents.at[extents.count++] = {name, matrix, shape_.rows, shape_.cols * bytes, bytes};
    return matrix;
  }

  void expect_gated(const char* name, const TensorView& view) const {
    check_value(gated_ || !view.defined(), op_, ": ", name, " is present, expected none");
  }

  bool wanted(const char* name, const TensorView& view) const {
    expect_gated(name, view);
    return gated_;
  }

  // One value a column, of x's dtype or float32.
  void* parameter(const char* name, const TensorView& view, Extents& extents) const {
    if (!view.defined()) return nullptr;
    check_.floating(name, view);
    check_.typed_or_float32(name, view, x_.dtype, x_name());
    check_type(view.dtype == bias_dtype_, op_, ": ", name, " is ", name_of(view.dtype),
               ", expected ", name_of(bias_dtype_),
               " (all parameters and their gradients share one dtype)");
    check_.packed(name, view, shape_.cols,
                  gated_ ? "the last dimension of gate" : "the last dimension of x");
    check_value(view.rank == 1, op_, ": ", name, " has ", view.rank, " dimensions, expected 1");
    const std::int64_t bytes = size_of(view.dtype);
    extents.at[extents.count++] = {name, {view.data, 0}, 1, shape_.cols * bytes, bytes};
    return view.data;
  }

  const char* op_;
  bool gated_;
  ArgumentChecker check_;
  const TensorView& x_;
  DType bias_dtype_;
  Shape2d shape_{};
  Extents inputs_;
  Extents outputs_;
};

// Without a bias nothing depends on the column: rows that follow each other without gaps are one.
template <class Problem>
void join_rows(Problem& p, std::initializer_list<Rows Problem::*> operands) {
  if (p.has_bias()) return;
  for (Rows Problem::*operand : operands) {
    const Rows& matrix = p.*operand;
    if (matrix.data != nullptr && p.rows > 1 && matrix.stride != p.cols) return;
  }
  p.cols *= p.rows;
  p.rows = p.cols == 0 ? 0 : 1;
}

PointwiseForwardProblem check(const Context& context, const PointwiseForward& a) {
  Operands operands(context, a.op, a.x, first_dtype(a.x.dtype, {&a.bias, &a.up_bias}));
  PointwiseForwardProblem p{};
  p.op = a.op;
  p.dtype = a.x.dtype;
  p.bias_dtype = first_dtype(a.x.dtype, {&a.bias, &a.up_bias});
  p.rows = operands.shape().rows;
  p.cols = operands.shape().cols;
  p.x = operands.input(operands.x_name(), a.x);
  p.up = operands.gated_input("up", a.up);
  p.bias = operands.bias("bias", a.bias);
  p.up_bias = operands.gated_bias("up_bias", a.up_bias);
  p.y = operands.output("y", a.y);
  operands.check_overlaps();
  using P = PointwiseForwardProblem;
  join_rows(p, {&P::x, &P::up, &P::y});
  return p;
}

PointwiseBackwardProblem check(const Context& context, const PointwiseBackward& a) {
  const DType bias_dtype = first_dtype(a.x.dtype, {&a.bias, &a.up_bias, &a.dbias, &a.dup_bias});
  Operands operands(context, a.op, a.x, bias_dtype);
  PointwiseBackwardProblem p{};
  p.op = a.op;
  p.dtype = a.x.dtype;
  p.bias_dtype = bias_dtype;
  p.rows = operands.shape().rows;
  p.cols = operands.shape().cols;
  p.dy = operands.input("dy", a.dy);
  p.x = operands.input(operands.x_name(), a.x);
  p.up = operands.gated_input("up", a.up);
  p.bias = operands.bias("bias", a.bias);
  p.up_bias = operands.gated_bias("up_bias", a.up_bias);
  p.dx = operands.output(operands.dx_name(), a.dx);
  p.dup = operands.gated_output("dup", a.dup);
  p.dbias = operands.bias_gradient("dbias", a.dbias);
  p.dup_bias = operands.gated_bias_gradient("dup_bias", a.dup_bias);
  if (a.y.defined()) p.y = operands.output("y", a.y);
  operands.check_overlaps();
  using P = PointwiseBackwardProblem;
  join_rows(p, {&P::dy, &P::x, &P::up, &P::dx, &P::dup, &P::y});
  return p;
}

}  // namespace

std::string describe(const PointwiseForwardProblem& p) {
  return concat("forward ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.has_bias() ? " + bias" : "");
}

std::string describe(const PointwiseBackwardProblem& p) {
  return concat("backward ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.has_bias() ? " + bias" : "", p.y.data != nullptr ? " + y" : "");
}

void pointwise_forward(const Context& context, const PointwiseForward& arguments) {
  const PointwiseForwardProblem problem = check(context, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on(name_of(problem.op), kForward, context, problem);
}

void pointwise_backward(const Context& context, const PointwiseBackward& arguments) {
  const PointwiseBackwardProblem problem = check(context, arguments);
  // Without rows the gradient of a bias is 0, and is still written.
  const bool sums = problem.dbias != nullptr || problem.dup_bias != nullptr;
  if (problem.cols == 0 || (problem.rows == 0 && !sums)) return;
  run_on(name_of(problem.op), kBackward, context, problem);
}

}  // namespace transformer_kernels
