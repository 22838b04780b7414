// SPDX-License-Identifier: MIT
// What the norms' bindings share: the outputs they allocate.
#pragma once

#include <array>

#include "core/check.h"
#include "torch/convert.h"

namespace transformer_kernels::torch_ops {

// Gradient of a parameter: (C,) of the weight's dtype, of x's where there is no weight.
inline Tensor empty_parameter_gradient(const char* op, const Tensor& x,
                                       const std::optional<Tensor>& weight, bool needed) {
  if (!needed) return absent(x);
  const DType dtype = weight ? view_of(op, "weight", *weight).dtype : view_of(op, "x", x).dtype;
  check_value(x.dim() >= 1, op, ": x has 0 dimensions, expected at least 1");
  const std::array<std::int64_t, 1> sizes{x.size(x.dim() - 1)};
  return empty(x, sizes, dtype);
}

inline TensorView view_if(bool wanted, const char* op, const char* name, const Tensor& tensor) {
  return wanted ? view_of(op, name, tensor) : TensorView{};
}

}  // namespace transformer_kernels::torch_ops
