// SPDX-License-Identifier: MIT
// Checked arguments of a linear layer with a quantised weight, as plain matrices.
#pragma once

#include <string>

#include "core/rows.h"
#include "linear/problem.h"
#include "transformer_kernels/linear/quantized_linear.h"

namespace transformer_kernels {

struct QuantizedMatrix {
  const void* packed;
  std::int64_t packed_stride;  // in bytes
  const void* scales;
  std::int64_t scales_stride;
  DType scales_dtype;
  std::int64_t group;
  int bits;
};

// Sizes are T rows of x, K columns of it, and N columns of y.
struct QuantizedLinearForwardProblem {
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t terms;
  std::int64_t cols;
  Rows x;
  QuantizedMatrix weight;
  const void* bias;  // may be null
  Rows y;
};

struct QuantizedLinearBackwardProblem {
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t terms;
  std::int64_t cols;
  Rows dy;
  QuantizedMatrix weight;
  Rows dx;  // each of these may be null
  void* dbias;

  // The gradient of the bias alone, which no weight takes part in.
  LinearBackwardProblem of_bias() const {
    LinearBackwardProblem bias{};
    bias.dtype = dtype;
    bias.bias_dtype = bias_dtype;
    bias.rows = rows;
    bias.cols = cols;
    bias.dy = dy;
    bias.dbias = dbias;
    return bias;
  }
};

std::string describe(const QuantizedLinearForwardProblem& problem);
std::string describe(const QuantizedLinearBackwardProblem& problem);

namespace cpu {
void quantized_linear_forward(const Context& context, const QuantizedLinearForwardProblem& problem);
void quantized_linear_backward(const Context& context,
                               const QuantizedLinearBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void quantized_linear_forward(const Context& context, const QuantizedLinearForwardProblem& problem);
void quantized_linear_backward(const Context& context,
                               const QuantizedLinearBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
