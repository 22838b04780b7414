// SPDX-License-Identifier: MIT
// A linear layer of one decoded token, with weights of 4 bits: the product has to be that of the
// rounded weights.
#include <transformer_kernels/linear/quantize_weight.h>
#include <transformer_kernels/linear/quantized_linear.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tensors.h"

namespace {

constexpr std::int64_t kRows = 2048, kTerms = 1024, kGroup = 32;
constexpr std::int64_t kGroups = kTerms / kGroup;

// A matrix of 4 bits a number and one scale for each group, as quantized_linear.h lays it out.
struct Rounded {
  std::vector<std::uint8_t> packed = std::vector<std::uint8_t>(kRows * kTerms / 2);
  Floats scales = Floats(kRows * kGroups);

  explicit Rounded(Floats& weight) {
    tfk::quantize_weight({}, {.weight = view(weight, {kRows, kTerms}),
                              .packed = packed_view(),
                              .scales = view(scales, {kRows, kGroups})});
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
  Floats full = random_values({kRows, kTerms}, 1);
  Rounded weight(full);
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
