// SPDX-License-Identifier: MIT
// The rows of a table that tokens name.
#include <transformer_kernels/embedding/embedding.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

namespace tfk = transformer_kernels;

template <class T, std::size_t N>
tfk::TensorView view(std::array<T, N>& x, tfk::DType dtype,
                     std::initializer_list<std::int64_t> shape) {
  return tfk::TensorView::contiguous(x.data(), dtype, {}, shape);
}

int main() {
  std::array<float, 6> table{0, 1, 10, 11, 20, 21}, y{};
  std::array<std::int64_t, 3> tokens{2, 0, 2};
  tfk::embedding_forward({}, {.weight = view(table, tfk::DType::kFloat32, {3, 2}),
                              .indices = view(tokens, tfk::DType::kInt64, {3}),
                              .y = view(y, tfk::DType::kFloat32, {3, 2})});
  for (int i = 0; i < 3; ++i) std::printf("%.0f %.0f\n", y[2 * i], y[2 * i + 1]);
  return y == std::array<float, 6>{20, 21, 0, 1, 20, 21} ? 0 : 1;
}
