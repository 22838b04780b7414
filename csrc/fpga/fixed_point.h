// SPDX-License-Identifier: MIT
// The arithmetic of a row of the array: integers alone, so that C++ and RTL agree to the bit.
// docs/fpga/numbers.md derives the error of each step.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace transformer_kernels::fpga {

inline constexpr int kFraction = 10;  // of a log2 score, Q7.10
inline constexpr int kLowestMaximum = -128;
// The largest log2 score leaves room for the ceiling of it in 8 bits.
inline constexpr std::int64_t kLargestLogit = std::int64_t{127} << kFraction;
inline constexpr std::int64_t kLeastLogit = -(std::int64_t{128} << kFraction);

// 2^(-i / 1024) in 1.16, rounded: the ROM of every row.
class ExponentTable {
 public:
  ExponentTable() {
    for (int i = 0; i < 1 << kFraction; ++i)
      value_[i] = static_cast<std::uint32_t>(std::lround(65536.0 * std::exp2(-i / 1024.0)));
  }
  std::uint32_t operator[](std::int64_t i) const { return value_[i]; }

 private:
  std::uint32_t value_[1 << kFraction];
};

inline const ExponentTable& exponent_table() {
  static const ExponentTable table;
  return table;
}

inline std::int64_t logit(std::int64_t score, std::uint16_t mantissa, int shift) {
  return std::clamp((score * mantissa) >> (10 + 4 * shift), kLeastLogit, kLargestLogit);
}

// 2^-distance in 1.16, of a distance in Q8.10; half of the last bit is rounded up.
inline std::uint32_t exp2_of_minus(std::int64_t distance) {
  const std::int64_t whole = distance >> kFraction;
  if (whole >= 32) return 0;
  const std::uint64_t fraction = exponent_table()[distance & ((1 << kFraction) - 1)];
  return static_cast<std::uint32_t>((((fraction << 1) >> whole) + 1) >> 1);
}

// The online softmax state of a row. The maximum is an integer, so that the sums are rescaled by a
// shift.
struct RunningSoftmax {
  int maximum = kLowestMaximum;
  std::uint32_t sum = 0;  // 13.16

  struct Step {
    std::uint32_t weight;  // of the new key, 1.16
    int rescale;           // bits by which the sums shift right before it is added; 32: to zero
  };

  Step add(std::int64_t t) {
    const int ceiling = static_cast<int>((t + (1 << kFraction) - 1) >> kFraction);
    const int rescale = std::clamp(ceiling - maximum, 0, 32);
    maximum = std::max(maximum, ceiling);
    const std::uint32_t weight = weight_of(t);
    sum = (rescale == 32 ? 0 : sum >> rescale) + weight;
    return {weight, rescale};
  }

  std::uint32_t weight_of(std::int64_t t) const {
    return exp2_of_minus((std::int64_t{maximum} << kFraction) - t);
  }
};

// Division by the row's sum, as the array does it: a shift that brings the sum to 18 bits, then a
// product with a reciprocal of 17 bits. A row that sees nothing has sum 0, and gives 0.
class Normaliser {
 public:
  explicit Normaliser(std::uint32_t sum) {
    if (sum == 0) return;
    const int top = std::bit_width(sum) - 1;  // at least 15: the largest weight is above 2^15
    const std::uint64_t divisor = (std::uint64_t{sum} << 2) >> (top - 15);
    shift_ = top - 9;
    reciprocal_ = std::min<std::uint64_t>((std::uint64_t{1} << 34) / divisor, (1 << 17) - 1);
  }

  // A sum of weights times int8 by the sum of weights, in Q8.8.
  std::int64_t divide(std::int64_t value) const {
    return std::clamp<std::int64_t>(times_reciprocal(value >> shift_), -32768, 32767);
  }

  // A weight by the sum of weights, in 0.16.
  std::int64_t share(std::uint32_t weight) const {
    return std::min<std::int64_t>(times_reciprocal((std::int64_t{weight} << 8) >> shift_), 65535);
  }

 private:
  std::int64_t times_reciprocal(std::int64_t value) const {
    return (value * reciprocal_ + (1 << 17)) >> 18;
  }

  int shift_ = 0;
  std::int64_t reciprocal_ = 0;
};

}  // namespace transformer_kernels::fpga
