// SPDX-License-Identifier: MIT
// The router of a mixture: each token's two best experts, and their weights, which sum to 1.
#include <transformer_kernels/moe/router.h>

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
  std::array<float, 8> logits{0, 4, 1, 2, 3, 0, 0, 2};
  std::array<float, 4> weights{};
  std::array<std::int32_t, 4> experts{};
  tfk::moe_router_forward({}, {.x = view(logits, tfk::DType::kFloat32, {2, 4}),
                               .options = {.renormalize = true},
                               .weights = view(weights, tfk::DType::kFloat32, {2, 2}),
                               .indices = view(experts, tfk::DType::kInt32, {2, 2})});
  for (int t = 0; t < 2; ++t) {
    std::printf("expert %d by %.3f, expert %d by %.3f\n", experts[2 * t], weights[2 * t],
                experts[2 * t + 1], weights[2 * t + 1]);
  }
  return experts == std::array<std::int32_t, 4>{1, 3, 0, 3} ? 0 : 1;
}
