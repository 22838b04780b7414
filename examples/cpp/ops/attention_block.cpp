// SPDX-License-Identifier: MIT
// An attention layer up to the norm behind it. Its weights are 0, so that the norm sees the
// residual.
#include <transformer_kernels/attention_block/attention_block.h>

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
  constexpr tfk::DType kFloat = tfk::DType::kFloat32;
  std::array<float, 4> x{1, 2, 3, 4}, residual{-1, 1, -1, 1}, heads{}, projected{}, y{}, sum{};
  std::array<float, 12> qkv{};
  std::array<float, 12 * 4> qkv_weight{};
  std::array<float, 4 * 4> out_weight{};
  const auto tokens = [&](std::array<float, 4>& of) { return view(of, kFloat, {1, 1, 4}); };
  tfk::attention_block_forward({}, {.inputs = {.x = tokens(x),
                                               .qkv_weight = view(qkv_weight, kFloat, {12, 4}),
                                               .out_weight = view(out_weight, kFloat, {4, 4}),
                                               .num_heads = 2,
                                               .num_kv_heads = 2},
                                    .residual = tokens(residual),
                                    .qkv = view(qkv, kFloat, {1, 1, 12}),
                                    .heads = tokens(heads),
                                    .projected = tokens(projected),
                                    .y = tokens(y),
                                    .sum = tokens(sum)});
  std::printf("%.3f %.3f\n", y[0], y[1]);
  return sum == residual && std::abs(y[1] - 1) < 1e-4f ? 0 : 1;
}
