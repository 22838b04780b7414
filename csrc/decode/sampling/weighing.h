// SPDX-License-Identifier: MIT
// The numbers and formulas of weights and of draws by them, the same on every device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/math/philox.h"

namespace transformer_kernels {

inline constexpr float kUnit = 0x1p40f;                 // a weight of 1, as a whole number
inline constexpr float kLeastExponent = -100.0f;        // of a weight
inline constexpr double kLog2OfE = 1.4426950408889634;  // converts exponents
inline constexpr float kColdest = 0x1p-126f;  // of temperatures; below it the likeliest is taken
inline constexpr float kHottest = 0x1p126f;

// The polynomial of 2^(40 + x), |x| <= 1/2, highest power first: an error of 2e-7 of the result.
struct PowerOfTwo {
  static constexpr int kTerms = 6;
  float term[kTerms] = {0x1.5bba14p30f, 0x1.3cea88p33f, 0x1.c6b752p35f,
                        0x1.ebf9bcp37f, 0x1.62e42ap39f, 0x1p40f};
};

// How weights follow from logits, and the limits that they pass.
struct Weighing {
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  float top;                 // the largest logit
  float scale;               // log2(e) / temperature
  float least = -kInfinity;  // logits
  float fewest = 0;          // weights, in units of 2^-40
  float mean = 0;            // log2 of weights, which differ by
  float reach = kInfinity;   // at most this from the mean
  bool is_limited = false;
  bool are_probabilities = false;  // in place of logits; there are no limits then
};

// Limits are compared as values: std::clamp would refer to constants of the host on a device.
constexpr Weighing weighing(float top, float temperature) {
  const float warm = temperature < kColdest ? kColdest : temperature;
  const double t = warm > kHottest ? kHottest : warm;
  return {.top = top, .scale = static_cast<float>(kLog2OfE / t)};
}

// A number of [0, 1), a multiple of 2^-53.
constexpr double uniform(std::int64_t seed, std::int64_t position, std::uint64_t stream) {
  const PhiloxWords words =
      philox(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(position), stream);
  const std::uint64_t bits = std::uint64_t{words.word[1]} << 32 | words.word[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// The offsets of the draws of speculative sampling, which keep them apart.
inline constexpr std::uint64_t kKeepStream = 1;
inline constexpr std::uint64_t kNextStream = 2;

// The part of a sum of weights, which is not 0, that a uniform number falls on.
constexpr std::int64_t part_of(double u, std::int64_t sum) {
  const auto part = static_cast<std::int64_t>(u * static_cast<double>(sum));
  return part < sum ? part : sum - 1;
}

// The mass that a filter keeps of a sum, rounded up: at least one token.
constexpr std::int64_t mass_of(float share, std::int64_t sum) {
  const double mass = double{share} * static_cast<double>(sum);
  const auto whole = static_cast<std::int64_t>(mass);
  return std::max<std::int64_t>(1, static_cast<double>(whole) < mass ? whole + 1 : whole);
}

// Keys of equal numbers are equal, and those of larger ones are larger.
inline constexpr std::uint32_t kSign = 0x80000000;
constexpr std::uint32_t key_of_bits(std::uint32_t bits) {
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
constexpr std::uint32_t bits_of_key(std::uint32_t key) {
  return (key & kSign) != 0 ? key & ~kSign : ~key;
}

}  // namespace transformer_kernels
