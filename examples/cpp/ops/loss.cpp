// SPDX-License-Identifier: MIT
// Cross-entropy of logits that prefer no class, and its gradient in the same pass.
#include <transformer_kernels/loss/cross_entropy.h>

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
  std::array<float, 8> logits{}, gradient{};
  std::array<std::int64_t, 2> labels{3, 0};
  std::array<float, 1> loss{};
  tfk::cross_entropy_forward({}, {.x = view(logits, tfk::DType::kFloat32, {2, 4}),
                                  .target = view(labels, tfk::DType::kInt64, {2}),
                                  .loss = view(loss, tfk::DType::kFloat32, {}),
                                  .dx = view(gradient, tfk::DType::kFloat32, {2, 4})});
  std::printf("loss %.4f, log 4 is %.4f; gradient of a label %.3f\n", loss[0], std::log(4.0),
              gradient[3]);
  return std::abs(loss[0] - std::log(4.0f)) < 1e-6f && gradient[3] == -0.375f ? 0 : 1;
}
