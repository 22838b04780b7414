// SPDX-License-Identifier: MIT
// A linear layer with its bias and activation in one call: y = relu(x weight^T + bias).
#include <transformer_kernels/linear/linear.h>

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
  std::array<float, 2> x{1, 2}, bias{0.5f, 0.5f}, y{};
  std::array<float, 4> weight{1, 1, -1, -1};
  constexpr tfk::DType kFloat = tfk::DType::kFloat32;
  tfk::linear_forward({}, {.x = view(x, kFloat, {1, 2}),
                           .weight = view(weight, kFloat, {2, 2}),
                           .bias = view(bias, kFloat, {2}),
                           .activation = tfk::Pointwise::kRelu,
                           .y = view(y, kFloat, {1, 2})});
  std::printf("%.1f %.1f\n", y[0], y[1]);
  return y[0] == 3.5f && y[1] == 0 ? 0 : 1;
}
