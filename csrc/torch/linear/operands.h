// SPDX-License-Identifier: MIT
// Activations by their numbers, and weights of two layers in one.
#pragma once

#include <cstddef>

#include "core/check.h"
#include "pointwise/problem.h"
#include "torch/convert.h"

namespace transformer_kernels::torch_ops {

// The number of an activation: its place among those of one tensor.
inline Pointwise activation_of(const char* op, std::int64_t number) {
  check_value(number >= 0 && number < kPointwiseCount && !is_gated(static_cast<Pointwise>(number)),
              op, ": activation is ", number, ", expected the number of one");
  return static_cast<Pointwise>(number);
}

// The number of an activation: its place among those of a gate.
inline Pointwise gate_of(const char* op, std::int64_t number) {
  std::int64_t left = number;
  for (int i = 0; i < kPointwiseCount && left >= 0; ++i) {
    const auto row = static_cast<Pointwise>(i);
    if (is_gated(row) && left-- == 0) return row;
  }
  check_value(false, op, ": activation is ", number, ", expected the number of one");
  return {};
}

// The arguments of a pass, with what the schemas of an MLP and of experts have. Without up_weight,
// dimension kLines of a gated weight has the rows of gate, then of up.
template <class Pass, int kLines>
struct GatedArguments : Pass {
  std::int64_t number;  // of the activation
  bool gated;

  bool in_one() const { return gated && !this->up_weight.defined(); }
  std::int64_t lines() const { return size_or_0(this->weight, kLines); }

  void prepare(const char* op) {
    this->activation = gated ? gate_of(op, number) : activation_of(op, number);
    check_value(!in_one() || lines() % 2 == 0, op, ": weight has ", lines(),
                " rows, expected an even number (those of gate, then of up)");
  }
};

// The second half along a dimension; the first is left in `both`.
inline TensorView split(TensorView& both, int dimension) {
  const std::int64_t count = both.sizes[dimension];
  both.sizes[dimension] = count / 2;
  TensorView second = both;
  second.data =
      static_cast<std::byte*>(both.data) +
      count / 2 * both.strides[dimension] * static_cast<std::int64_t>(size_of(both.dtype));
  return second;
}

}  // namespace transformer_kernels::torch_ops
