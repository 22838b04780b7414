// SPDX-License-Identifier: MIT
#include "norm/row_norm.h"

#include "core/backends.h"
#include "core/dispatch.h"

namespace transformer_kernels {
namespace {

constexpr Backends<NormForwardProblem> kForward{.cpu = cpu::norm_forward,
                                                .cuda = kHasCuda ? cuda::norm_forward : nullptr};
constexpr Backends<NormBackwardProblem> kBackward{.cpu = cpu::norm_backward,
                                                  .cuda = kHasCuda ? cuda::norm_backward : nullptr};

// An operand of x's dtype and shape.
Rows matrix(const ArgumentChecker& check, const char* op, const char* name, const TensorView& view,
            const TensorView& x) {
  check.typed(name, view, x.dtype, "the dtype of x");
  check.same_shape(name, view, "x", x);
  return {view.data, checked_row_stride(op, name, view)};
}

Rows optional_matrix(const ArgumentChecker& check, const char* op, const char* name,
                     const TensorView& view, const TensorView& x) {
  return view.defined() ? matrix(check, op, name, view, x) : Rows{};
}

Rows output_matrix(const ArgumentChecker& check, const char* op, const char* name,
                   const TensorView& view, const TensorView& x) {
  Rows rows = matrix(check, op, name, view, x);
  rows.stride = checked_output_stride(op, name, view);
  return rows;
}

// A parameter or its gradient: one value a column, of x's dtype or float32.
void* parameter(const ArgumentChecker& check, const char* op, const char* name,
                const TensorView& view, const TensorView& x, DType dtype) {
  if (!view.defined()) return nullptr;
  const std::int64_t cols = x.sizes[x.rank - 1];
  check.floating(name, view);
  const bool allowed =
      view.dtype == x.dtype || (view.dtype == DType::kFloat32 && x.dtype != DType::kFloat64);
  check_type(allowed, op, ": ", name, " is ", name_of(view.dtype), ", expected ", name_of(x.dtype),
             size_of(x.dtype) < 4 ? " or float32" : "", " (the dtype of x)");
  check_type(view.dtype == dtype, op, ": ", name, " is ", name_of(view.dtype), ", expected ",
             name_of(dtype), " (all parameters and their gradients share one dtype)");
  check.packed(name, view, cols, "the last dimension of x");
  return view.data;
}

void* statistics(const ArgumentChecker& check, const char* name, const TensorView& view,
                 const TensorView& x, std::int64_t rows) {
  if (!view.defined()) return nullptr;
  check.typed(name, view, accumulate_dtype(x.dtype), "the dtype of statistics");
  check.packed(name, view, rows, "one for each row of x");
  return view.data;
}

DType first_dtype(DType otherwise, std::initializer_list<const TensorView*> views) {
  for (const TensorView* view : views) {
    if (view->defined()) return view->dtype;
  }
  return otherwise;
}

}  // namespace

NormForwardProblem check_norm_forward(Device device, const NormForwardArguments& a) {
  const ArgumentChecker check(a.op, device);
  check.floating("x", a.x);
  check_value(a.residual.defined() == a.sum.defined(), a.op, ": ",
              a.sum.defined() ? "residual" : "sum", " is missing, expected with ",
              a.sum.defined() ? "sum" : "residual");
  const auto [rows, cols] = rows_and_cols(a.x);
  const DType weight_dtype = first_dtype(a.x.dtype, {&a.weight, &a.bias});
  NormForwardProblem p{};
  p.center = a.center;
  p.dtype = a.x.dtype;
  p.weight_dtype = weight_dtype;
  p.rows = rows;
  p.cols = cols;
  p.x = {a.x.data, checked_row_stride(a.op, "x", a.x)};
  p.residual = optional_matrix(check, a.op, "residual", a.residual, a.x);
  p.y = output_matrix(check, a.op, "y", a.y, a.x);
  if (a.sum.defined()) p.sum = output_matrix(check, a.op, "sum", a.sum, a.x);
  p.weight = parameter(check, a.op, "weight", a.weight, a.x, weight_dtype);
  p.bias = parameter(check, a.op, "bias", a.bias, a.x, weight_dtype);
  p.mean = statistics(check, "mean", a.mean, a.x, rows);
  p.rstd = statistics(check, "rstd", a.rstd, a.x, rows);
  p.eps = a.eps;
  p.zero_centered_weight = a.zero_centered_weight;
  p.op = a.op;
  return p;
}

NormBackwardProblem check_norm_backward(Device device, const NormBackwardArguments& a) {
  const ArgumentChecker check(a.op, device);
  check.floating("x", a.x);
  const auto [rows, cols] = rows_and_cols(a.x);
  const DType weight_dtype = first_dtype(a.x.dtype, {&a.weight, &a.dweight, &a.dbias});
  NormBackwardProblem p{};
  p.center = a.center;
  p.dtype = a.x.dtype;
  p.weight_dtype = weight_dtype;
  p.rows = rows;
  p.cols = cols;
  p.dy = matrix(check, a.op, "dy", a.dy, a.x);
  p.dsum = optional_matrix(check, a.op, "dsum", a.dsum, a.x);
  p.x = {a.x.data, checked_row_stride(a.op, "x", a.x)};
  p.dx = output_matrix(check, a.op, "dx", a.dx, a.x);
  if (a.center) check_value(a.mean.defined(), a.op, ": mean is missing");
  p.mean = statistics(check, "mean", a.mean, a.x, rows);
  check_value(a.rstd.defined(), a.op, ": rstd is missing");
  p.rstd = statistics(check, "rstd", a.rstd, a.x, rows);
  p.weight = parameter(check, a.op, "weight", a.weight, a.x, weight_dtype);
  p.dweight = parameter(check, a.op, "dweight", a.dweight, a.x, weight_dtype);
  p.dbias = parameter(check, a.op, "dbias", a.dbias, a.x, weight_dtype);
  p.zero_centered_weight = a.zero_centered_weight;
  p.op = a.op;
  return p;
}

void run_norm(const Context& context, const NormForwardProblem& problem) {
  if (problem.rows > 0) run_on(problem.op, kForward, context, problem);
}

void run_norm(const Context& context, const NormBackwardProblem& problem) {
  run_on(problem.op, kBackward, context, problem);
}

std::string describe(const NormForwardProblem& p) {
  return concat("forward ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.residual.data ? " + residual" : "");
}

std::string describe(const NormBackwardProblem& p) {
  return concat("backward ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.dsum.data ? " + dsum" : "");
}

}  // namespace transformer_kernels
