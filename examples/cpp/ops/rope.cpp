// SPDX-License-Identifier: MIT
// The rotation of two tokens' queries by their positions: the first stays, lengths stay.
#include <transformer_kernels/rope/rope.h>

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
  std::array<float, 8> q{1, 0, 0, 0, 1, 0, 0, 0}, rotated{};  // (B, T, H, D) = (1, 2, 1, 4)
  std::array<float, 4> cosines{}, sines{};                    // (positions, D / 2)
  for (int position = 0; position < 2; ++position) {
    for (int pair = 0; pair < 2; ++pair) {
      const double angle = position * std::pow(10000.0, -pair / 2.0);
      cosines[2 * position + pair] = static_cast<float>(std::cos(angle));
      sines[2 * position + pair] = static_cast<float>(std::sin(angle));
    }
  }
  constexpr tfk::DType kFloat = tfk::DType::kFloat32;
  tfk::rope_forward(
      {}, {.q = view(q, kFloat, {1, 2, 1, 4}),
           .angles = {.cos = view(cosines, kFloat, {2, 2}), .sin = view(sines, kFloat, {2, 2})},
           .q_rotated = view(rotated, kFloat, {1, 2, 1, 4})});
  std::printf("%.4f %.4f\n", rotated[4], rotated[6]);
  return rotated[0] == 1 && rotated[4] == cosines[2] && rotated[6] == sines[2] ? 0 : 1;
}
