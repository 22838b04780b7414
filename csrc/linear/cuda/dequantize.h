// SPDX-License-Identifier: MIT
// A quantised weight as a plain matrix, on CUDA (plain/dequantize_typed.cu).
#pragma once

#include "linear/problem.h"
#include "linear/quantized_problem.h"

namespace transformer_kernels::cuda {

// Into `to`, of contiguous rows of T. Computed in float32, then rounded.
template <class T>
void dequantize(const Context& context, const QuantizedMatrix& weight, std::int64_t rows,
                std::int64_t cols, const Matrix& to);

}  // namespace transformer_kernels::cuda
