// SPDX-License-Identifier: MIT
// Checked arguments of the family, as plain matrices: the problems that its engines take.
#pragma once

#include <optional>
#include <string>

#include "core/rows.h"
#include "transformer_kernels/linear/linear.h"

namespace transformer_kernels {

// Element (row, col) stands at data[row * row_step + col * col_step].
struct Matrix {
  void* data = nullptr;
  std::int64_t row_step = 0;
  std::int64_t col_step = 0;

  Matrix transposed() const { return {data, col_step, row_step}; }
};

constexpr Matrix matrix_of(const Rows& rows) { return {rows.data, rows.stride, 1}; }

// Sizes are T rows of x, K columns of it, and N columns of y.
struct LinearForwardProblem {
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t terms;
  std::int64_t cols;
  std::optional<Pointwise> activation;
  Rows x;
  Matrix weight;
  const void* packed = nullptr;  // the weight as pack_weight() leaves it; may be null
  const void* bias;              // may be null
  Rows z;                        // null where it is not wanted
  Rows y;
  std::int64_t algorithm = kAnyAlgorithm;
};

struct LinearBackwardProblem {
  DType dtype;
  DType bias_dtype;
  DType dweight_dtype = dtype;
  std::int64_t rows;
  std::int64_t terms;
  std::int64_t cols;
  std::optional<Pointwise> activation;
  Rows dy;
  Rows x;
  Matrix weight;
  Rows z;   // null without an activation
  Rows dx;  // each of these may be null
  Matrix dweight;
  void* dbias;
  std::int64_t dx_algorithm = kAnyAlgorithm;
  std::int64_t dweight_algorithm = kAnyAlgorithm;
  bool accumulates_dx = false;
  bool accumulates_dweight = false;
  bool accumulates_dbias = false;
};

// Sizes are T rows, N columns of dy as terms, and K columns of z.
struct LinearDactProblem {
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t terms;
  std::int64_t cols;
  Pointwise activation;
  Rows dy;
  Matrix weight;
  Rows z;
  Rows dz;
  Rows h;  // either may be null
  void* dbias;
  bool accumulates_dbias = false;
};

struct PackWeightProblem {
  DType dtype;
  std::int64_t terms;
  std::int64_t cols;
  Matrix weight;
  void* packed;
};

std::string describe(const PackWeightProblem& problem);
std::string describe(const LinearForwardProblem& problem);
std::string describe(const LinearBackwardProblem& problem);
std::string describe(const LinearDactProblem& problem);

namespace cpu {
std::int64_t packed_bytes(DType dtype, std::int64_t terms, std::int64_t cols);
void pack_weight(const Context& context, const PackWeightProblem& problem);
void linear_forward(const Context& context, const LinearForwardProblem& problem);
void linear_backward(const Context& context, const LinearBackwardProblem& problem);
void linear_dact(const Context& context, const LinearDactProblem& problem);
}  // namespace cpu
namespace cuda {
void linear_forward(const Context& context, const LinearForwardProblem& problem);
void linear_backward(const Context& context, const LinearBackwardProblem& problem);
void linear_dact(const Context& context, const LinearDactProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
