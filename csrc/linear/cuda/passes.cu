// SPDX-License-Identifier: MIT
// The forward and backward passes as products, and the choice of an engine for each.
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "linear/cuda/bias_gradient.h"
#include "pointwise/problem.h"

namespace transformer_kernels::cuda {
namespace {

// dy f'(z), and the sums of its columns where they are wanted.
void slope_times(const Context& context, const LinearBackwardProblem& p, const Rows& dz) {
  pointwise_backward(context, {.op = *p.activation,
                               .dtype = p.dtype,
                               .bias_dtype = p.bias_dtype,
                               .rows = p.rows,
                               .cols = p.cols,
                               .dy = p.dy,
                               .x = p.z,
                               .dx = dz,
                               .dbias = p.dbias,
                               .accumulates_dbias = p.accumulates_dbias});
}

}  // namespace

void linear_forward(const Context& context, const LinearForwardProblem& p) {
  multiply(context, {.op = p.activation ? "linear_act" : "linear",
                     .dtype = p.dtype,
                     .rows = p.rows,
                     .cols = p.cols,
                     .terms = p.terms,
                     .a = matrix_of(p.x),
                     .b = p.weight.transposed(),
                     .out = matrix_of(p.y),
                     .kept = matrix_of(p.z),
                     .bias = p.bias,
                     .bias_dtype = p.bias_dtype,
                     .activation = p.activation,
                     .algorithm = p.algorithm});
}

void linear_backward(const Context& context, const LinearBackwardProblem& p) {
  const char* const op = p.activation ? "linear_act" : "linear";
  const std::int64_t dz_numbers = p.activation ? p.rows * p.cols : 0;
  const Scratch memory(op, context, dz_numbers * size_of(p.dtype));
  const Rows rows = p.activation ? Rows{memory.as<void>(), p.cols} : p.dy;
  if (p.activation) {
    slope_times(context, p, rows);
  } else if (p.dbias != nullptr) {
    bias_gradient(op, context,
                  {.dtype = p.dtype,
                   .bias_dtype = p.bias_dtype,
                   .rows = p.rows,
                   .cols = p.cols,
                   .dy = p.dy,
                   .dbias = p.dbias,
                   .accumulates = p.accumulates_dbias});
  }
  const Matrix dz = matrix_of(rows);
  if (p.dx.data != nullptr) {
    multiply(context, {.op = op,
                       .dtype = p.dtype,
                       .accumulates = p.accumulates_dx,
                       .rows = p.rows,
                       .cols = p.terms,
                       .terms = p.cols,
                       .a = dz,
                       .b = p.weight,
                       .out = matrix_of(p.dx),
                       .algorithm = p.dx_algorithm});
  }
  if (p.dweight.data == nullptr) return;
  const Product dweight{.op = op,
                        .dtype = p.dtype,
                        .out_dtype = p.dweight_dtype,
                        .accumulates = p.accumulates_dweight,
                        .rows = p.cols,
                        .cols = p.terms,
                        .terms = p.rows,
                        .a = dz.transposed(),
                        .b = matrix_of(p.x),
                        .out = p.dweight,
                        .algorithm = p.dweight_algorithm};
  // A weight kept by columns: its transpose has contiguous rows.
  multiply(context, p.dweight.col_step == 1 ? dweight : dweight.transposed());
}

void linear_dact(const Context& context, const LinearDactProblem& p) {
  multiply(context, {.op = "linear_dact",
                     .dtype = p.dtype,
                     .rows = p.rows,
                     .cols = p.cols,
                     .terms = p.terms,
                     .a = matrix_of(p.dy),
                     .b = p.weight,
                     .out = matrix_of(p.dz),
                     .kept = matrix_of(p.h),
                     .z = matrix_of(p.z),
                     .bias_dtype = p.bias_dtype,
                     .activation = p.activation,
                     .dbias = p.dbias,
                     .accumulates_dbias = p.accumulates_dbias});
}

}  // namespace transformer_kernels::cuda
