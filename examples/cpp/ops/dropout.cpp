// SPDX-License-Identifier: MIT
// Dropout: about half of the ones become 0, the others 2. The same seed drops the same.
#include <transformer_kernels/pointwise/dropout.h>

#include <algorithm>
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
  std::array<float, 1024> x{}, y{}, again{};
  std::array<std::int64_t, 2> seed{2026, 0};
  x.fill(1);
  for (auto* const out : {&y, &again}) {
    tfk::dropout_forward({}, {.x = view(x, tfk::DType::kFloat32, {1, 1024}),
                              .seed = view(seed, tfk::DType::kInt64, {2}),
                              .p = 0.5,
                              .y = view(*out, tfk::DType::kFloat32, {1, 1024})});
  }
  const auto dropped = std::count(y.begin(), y.end(), 0.0f);
  const auto kept = std::count(y.begin(), y.end(), 2.0f);
  std::printf("%td dropped, %td kept\n", dropped, kept);
  return y == again && dropped + kept == 1024 && dropped > 400 && kept > 400 ? 0 : 1;
}
