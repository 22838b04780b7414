// SPDX-License-Identifier: MIT
// The examples share this: memory of their own, and views of it.
#pragma once

#include <transformer_kernels/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace tfk = transformer_kernels;

using Floats = std::vector<float>;
using Shape = std::initializer_list<std::int64_t>;

inline std::int64_t size_of(Shape shape) {
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  return size;
}

// Normally distributed values, the same in each run.
inline Floats random_values(Shape shape, unsigned seed = 2026) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Floats values(size_of(shape));
  for (float& value : values) value = normal(engine);
  return values;
}

inline tfk::TensorView view(float* data, Shape shape) {
  return tfk::TensorView::contiguous(data, tfk::DType::kFloat32, {}, shape);
}
inline tfk::TensorView view(Floats& values, Shape shape) { return view(values.data(), shape); }
