// SPDX-License-Identifier: MIT
// The loss of a head over 1,000 tokens, whose logits are never in memory as a whole.
#include <transformer_kernels/linear_loss/linear_loss.h>

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
  static std::array<float, 16 * 8> x{};
  static std::array<float, 1000 * 8> weight{};
  std::array<std::int64_t, 16> labels{};
  std::array<float, 1> loss{};
  x.fill(1);
  const tfk::LinearLossLayer layer{.x = view(x, tfk::DType::kFloat32, {16, 8}),
                                   .linear_weight = view(weight, tfk::DType::kFloat32, {1000, 8}),
                                   .chunk_bytes = 4 * 1000 * 4};  // four rows at a time
  tfk::linear_cross_entropy_forward(
      {}, {.inputs = {.layer = layer, .target = view(labels, tfk::DType::kInt64, {16})},
           .loss = view(loss, tfk::DType::kFloat32, {})});
  std::printf("loss %.4f, log 1000 is %.4f\n", loss[0], std::log(1000.0));
  return std::abs(loss[0] - std::log(1000.0f)) < 1e-5f ? 0 : 1;
}
