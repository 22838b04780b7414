// SPDX-License-Identifier: MIT
// Checked arguments of dropout, as plain rows.
#pragma once

#include <string>

#include "core/rows.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/pointwise/dropout.h"

namespace transformer_kernels {

// The elements that dropout keeps, and their factor.
struct DropoutDraw {
  static constexpr std::uint32_t kValues = 65536;

  std::uint32_t below;  // an element is dropped where its number is below this: all at kValues
  double scale;
  std::uint64_t seed;
  std::uint64_t offset;
  const std::uint64_t* seed_data;  // CUDA: where not null, both lie there

  constexpr bool keeps_all() const { return below == 0; }
  constexpr bool keeps_none() const { return below == kValues; }
};

// Throws Error where p or the seed is not what an op takes; `like_name` is the tensor that the seed
// may lie beside.
DropoutDraw checked_draw(const char* op, const Context& context, double p, const TensorView& seed,
                         const char* like_name);

struct DropoutForwardProblem {
  const char* op;
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t cols;
  Rows x;
  Rows residual;  // may be null
  Rows y;
  const void* bias;  // may be null
  DropoutDraw draw;
};

struct DropoutBackwardProblem {
  const char* op;
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t cols;
  Rows dy;
  Rows dx;
  void* dbias;  // may be null
  DropoutDraw draw;
};

// The gradient of x, which is the forward pass applied to dy.
constexpr DropoutForwardProblem dropout_of_gradient(const DropoutBackwardProblem& p) {
  return {.op = p.op,
          .dtype = p.dtype,
          .bias_dtype = p.bias_dtype,
          .rows = p.rows,
          .cols = p.cols,
          .x = p.dy,
          .residual = {},
          .y = p.dx,
          .bias = nullptr,
          .draw = p.draw};
}

// Without rows the gradient of a bias is 0, and is still written.
constexpr bool is_empty(const DropoutForwardProblem& p) { return p.rows == 0 || p.cols == 0; }
constexpr bool is_empty(const DropoutBackwardProblem& p) {
  return p.cols == 0 || (p.rows == 0 && p.dbias == nullptr);
}

std::string describe(const DropoutForwardProblem& problem);
std::string describe(const DropoutBackwardProblem& problem);

namespace cpu {
void dropout_forward(const Context& context, const DropoutForwardProblem& problem);
void dropout_backward(const Context& context, const DropoutBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void dropout_forward(const Context& context, const DropoutForwardProblem& problem);
void dropout_backward(const Context& context, const DropoutBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
