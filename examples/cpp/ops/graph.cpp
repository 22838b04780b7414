// SPDX-License-Identifier: MIT
// Each node of a graph sums the rows of its neighbours. Node 0 has two of them, node 1 has one.
#include <transformer_kernels/graph/gather_reduce.h>

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
  std::array<float, 6> x{1, 10, 2, 20, 3, 30};
  std::array<std::int64_t, 3> offsets{0, 2, 3}, neighbours{1, 2, 0};
  std::array<float, 4> y{};
  tfk::gather_reduce_forward({}, {.x = view(x, tfk::DType::kFloat32, {3, 2}),
                                  .edges = {.offsets = view(offsets, tfk::DType::kInt64, {3}),
                                            .indices = view(neighbours, tfk::DType::kInt64, {3})},
                                  .y = view(y, tfk::DType::kFloat32, {2, 2})});
  std::printf("%.0f %.0f\n%.0f %.0f\n", y[0], y[1], y[2], y[3]);
  return y == std::array<float, 4>{5, 50, 1, 10} ? 0 : 1;
}
