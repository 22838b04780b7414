// SPDX-License-Identifier: MIT
// Causal attention of three tokens with equal scores: each is the mean of the values so far.
#include <transformer_kernels/attention/attention.h>

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
  std::array<float, 6> q{}, k{}, v{1, 10, 2, 20, 3, 30}, out{};  // (B, T, H, D) = (1, 3, 1, 2)
  constexpr tfk::DType kFloat = tfk::DType::kFloat32;
  tfk::attention_forward({}, {.inputs = {.q = view(q, kFloat, {1, 3, 1, 2}),
                                         .k = view(k, kFloat, {1, 3, 1, 2}),
                                         .v = view(v, kFloat, {1, 3, 1, 2}),
                                         .causal = true},
                              .out = view(out, kFloat, {1, 3, 1, 2})});
  for (int t = 0; t < 3; ++t) std::printf("%.2f %.2f\n", out[2 * t], out[2 * t + 1]);
  return out[0] == 1 && out[2] == 1.5f && std::abs(out[5] - 20) < 1e-4f ? 0 : 1;
}
