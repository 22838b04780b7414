// SPDX-License-Identifier: MIT
// The gradient of a bias as a pass of its own: the sum of rows, in a fixed order.
#pragma once

#include "linear/cuda/engines.h"

namespace transformer_kernels::cuda {

struct BiasGradient {
  DType dtype;
  DType bias_dtype;
  std::int64_t rows;
  std::int64_t cols;
  Rows dy;
  void* dbias;
};

void bias_gradient(const char* op, const Context& context, const BiasGradient& p);

// Of the result of a product, where it is wanted.
void bias_gradient(const Context& context, const Product& p);

}  // namespace transformer_kernels::cuda
