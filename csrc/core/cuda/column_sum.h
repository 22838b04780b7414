// SPDX-License-Identifier: MIT
// The last step of a parameter gradient on CUDA: partial rows summed to one, in a fixed order.
#pragma once

#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels::cuda {

// `rows` partial rows of dweight and dbias side by side: partial[row][which][pitch]. Those of float
// are read four at a time: their pitch is a multiple of 4.
template <class V>
struct PartialGradients {
  const V* partial;
  int rows;
  std::int64_t pitch;  // at least cols
  std::int64_t cols;
  void* dweight;  // either may be null
  void* dbias;
  bool accumulates = false;  // the sums are added to what is there
};

// The gradients are of `dtype`. after_previous: the kernel before says when this one may start.
void sum_columns(const char* op, const Context& context, DType dtype,
                 const PartialGradients<float>& p, bool after_previous);
void sum_columns(const char* op, const Context& context, DType dtype,
                 const PartialGradients<double>& p, bool after_previous);

}  // namespace transformer_kernels::cuda
