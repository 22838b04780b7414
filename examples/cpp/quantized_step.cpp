// SPDX-License-Identifier: MIT
// A linear layer of one decoded token, with weights of 4 bits: the weights are rounded here, and
// the kernel has to give the product of the rounded ones.
#include <transformer_kernels/linear/quantized_linear.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tensors.h"

namespace {

constexpr std::int64_t kRows = 2048, kTerms = 1024, kGroup = 32;
constexpr std::int64_t kGroups = kTerms / kGroup;
constexpr int kLargest = 7;  // of a nibble, but for -8

// A matrix of 4 bits a number and one scale for each group, as quantized_linear.h lays it out.
struct Rounded {
  std::vector<std::uint8_t> packed = std::vector<std::uint8_t>(kRows * kTerms / 2);
  Floats scales = Floats(kRows * kGroups);

  explicit Rounded(const Floats& weight) {
    for (std::int64_t i = 0; i < kRows * kGroups; ++i) round_group(&weight[i * kGroup], i);
  }

  void round_group(const float* group, std::int64_t place) {
    float most = 0;
    for (int i = 0; i < kGroup; ++i) most = std::max(most, std::abs(group[i]));
    const float scale = scales[place] = std::max(most, 1e-20f) / kLargest;
    for (int i = 0; i < kGroup; ++i) {
      const int number = static_cast<int>(std::lround(group[i] / scale));
      packed[(place * kGroup + i) / 2] |= (number & 15) << (i % 2 == 0 ? 0 : 4);
    }
  }

  double number(std::int64_t row, std::int64_t term) const {
    const std::int64_t place = row * kTerms + term;
    const int nibble = packed[place / 2] >> (place % 2 == 0 ? 0 : 4) & 15;
    return (nibble < 8 ? nibble : nibble - 16) * double{scales[place / kGroup]};
  }

  tfk::TensorView packed_view() {
    return tfk::TensorView::contiguous(packed.data(), tfk::DType::kUInt8, {}, {kRows, kTerms / 2});
  }
};

}  // namespace

int main() {
  Rounded weight(random_values({kRows, kTerms}, 1));
  Floats token = random_values({1, kTerms}, 2), y(kRows);
  tfk::quantized_linear_forward({}, {.x = view(token, {1, kTerms}),
                                     .packed = weight.packed_view(),
                                     .scales = view(weight.scales, {kRows, kGroups}),
                                     .y = view(y, {1, kRows})});
  double error = 0, largest = 0;
  for (std::int64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (std::int64_t term = 0; term < kTerms; ++term)
      sum += weight.number(row, term) * token[term];
    error = std::max(error, std::abs(sum - y[row]));
    largest = std::max(largest, std::abs(sum));
  }
  const std::size_t bytes = weight.packed.size() + weight.scales.size() * sizeof(float);
  std::printf("quantized_linear: %zu bytes of weights, %.1f bits a number; error %.1e of %.1f\n",
              bytes, 8.0 * static_cast<double>(bytes) / (kRows * kTerms), error, largest);
  return error < 1e-5 * largest ? 0 : 1;
}
