// SPDX-License-Identifier: MIT
// SwiGLU: the SiLU of a gate times another row.
#include <transformer_kernels/pointwise/pointwise.h>

#include <array>
#include <cmath>
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
  std::array<float, 3> gate{-1, 0, 2}, up{1, 1, 10}, y{};
  constexpr tfk::DType kFloat = tfk::DType::kFloat32;
  tfk::pointwise_forward({}, {.op = tfk::Pointwise::kSwiGlu,
                              .x = view(gate, kFloat, {1, 3}),
                              .up = view(up, kFloat, {1, 3}),
                              .y = view(y, kFloat, {1, 3})});
  std::printf("%.4f %.4f %.4f\n", y[0], y[1], y[2]);
  return std::abs(y[2] - 20 / (1 + std::exp(-2.0f))) < 1e-5f ? 0 : 1;
}
