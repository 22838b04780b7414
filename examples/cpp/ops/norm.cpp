// SPDX-License-Identifier: MIT
// RMSNorm of a sum, which the same call returns for the residual path.
#include <transformer_kernels/norm/norm.h>

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
  std::array<float, 4> x{1, 2, 3, 4}, residual{2, 1, 0, -1}, weight{1, 1, 1, 2}, sum{}, y{};
  constexpr tfk::DType kFloat = tfk::DType::kFloat32;
  tfk::rms_norm_forward({}, {.x = view(x, kFloat, {1, 4}),
                             .residual = view(residual, kFloat, {1, 4}),
                             .weight = view(weight, kFloat, {4}),
                             .y = view(y, kFloat, {1, 4}),
                             .sum = view(sum, kFloat, {1, 4})});
  for (int i = 0; i < 4; ++i) std::printf("sum %.0f, normalised %.3f\n", sum[i], y[i]);
  return sum[3] == 3 && std::abs(y[3] - 2) < 1e-5f ? 0 : 1;
}
