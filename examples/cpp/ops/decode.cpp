// SPDX-License-Identifier: MIT
// The next token of two sequences: the likeliest, and one that is drawn from the two likeliest.
#include <transformer_kernels/decode/sample_logits.h>

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
  std::array<float, 8> logits{0, 3, 1, 2, 5, 1, 5, 0};
  std::array<tfk::SamplingParameters, 2> parameters{{{.temperature = 0}, {.top_k = 2}}};
  std::array<std::int64_t, 2> seeds{1, 2}, positions{}, tokens{};
  tfk::sample_logits({}, {.logits = view(logits, tfk::DType::kFloat32, {2, 4}),
                          .parameters = view(parameters, tfk::DType::kFloat32, {2, 8}),
                          .seed = view(seeds, tfk::DType::kInt64, {2}),
                          .position = view(positions, tfk::DType::kInt64, {2}),
                          .tokens = view(tokens, tfk::DType::kInt64, {2})});
  std::printf("token %lld, and %lld of 0 and 2\n", static_cast<long long>(tokens[0]),
              static_cast<long long>(tokens[1]));
  return tokens[0] == 1 && (tokens[1] == 0 || tokens[1] == 2) ? 0 : 1;
}
