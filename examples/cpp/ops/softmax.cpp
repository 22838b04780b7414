// SPDX-License-Identifier: MIT
// The causal softmax of equal scores: row i is 1 / (i + 1) up to the diagonal, and 0 behind it.
#include <transformer_kernels/softmax/softmax.h>

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
  std::array<float, 9> scores{}, p{};
  tfk::softmax_forward({}, {.x = view(scores, tfk::DType::kFloat32, {3, 3}),
                            .y = view(p, tfk::DType::kFloat32, {3, 3}),
                            .causal = true});
  for (int i = 0; i < 3; ++i) std::printf("%.3f %.3f %.3f\n", p[3 * i], p[3 * i + 1], p[3 * i + 2]);
  return p[0] == 1 && p[4] == 0.5f && p[5] == 0 ? 0 : 1;
}
