// SPDX-License-Identifier: MIT
// A linear layer in int8 on an FPGA array: its bit-exact model, which is in every build.
#include <transformer_kernels/fpga/array.h>
#include <transformer_kernels/fpga/linear.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

namespace tfk = transformer_kernels;

template <std::size_t N>
tfk::TensorView view(std::array<float, N>& x, std::initializer_list<std::int64_t> shape) {
  return tfk::TensorView::contiguous(x.data(), tfk::DType::kFloat32, {}, shape);
}

int main() {
  std::array<float, 2> x{3, -1}, bias{0.5f, 0.5f}, y{};
  std::array<float, 4> weight{1, 1, 1, -1};
  tfk::fpga::Array array("r4c16d64n1024");
  tfk::fpga::linear_forward({.array = &array}, {.x = view(x, {1, 2}),
                                                .weight = view(weight, {2, 2}),
                                                .bias = view(bias, {2}),
                                                .y = view(y, {1, 2})});
  const std::uint64_t cycles = array.counters().cycles;
  std::printf("%.2f %.2f in %llu cycles\n", y[0], y[1], static_cast<unsigned long long>(cycles));
  return std::abs(y[0] - 2.5f) < 0.02f && std::abs(y[1] - 4.5f) < 0.02f && cycles > 0 ? 0 : 1;
}
