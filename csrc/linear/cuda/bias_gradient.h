// SPDX-License-Identifier: MIT
// The gradient of a bias as a pass of its own: the sum of rows in a fixed order.
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
  bool accumulates;
};

void bias_gradient(const char* op, const Context& context, const BiasGradient& p);

// Sums the rows of a product's result, if the product has a bias gradient to write.
void bias_gradient(const Context& context, const Product& p);

}  // namespace transformer_kernels::cuda
