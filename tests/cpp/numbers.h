// SPDX-License-Identifier: MIT
// Numbers as the storage types hold them, from first principles: nothing here is shared with the
// library's conversions, so that the two can be compared.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels::testing {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A binary floating-point format: bits of the stored fraction, and the smallest and largest
// exponent of a normal number.
struct Format {
  int fraction_bits;
  int min_exponent;
  int max_exponent;
};

constexpr Format format_of(DType dtype) {
  constexpr Format kFormats[] = {{52, -1022, 1023}, {23, -126, 127}, {10, -14, 15}, {7, -126, 127}};
  return kFormats[static_cast<int>(dtype)];
}

// 2 to the exponent, which a normal float64 has.
constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// The exponent of a finite number's leading bit, clamped to those of the format's normal numbers.
constexpr int exponent_in(Format f, double value) {
  const auto biased = static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52 & 0x7ff);
  return std::clamp(biased - 1023, f.min_exponent, f.max_exponent);
}

// Half the distance between 1 and the next number: the largest relative error of one rounding.
constexpr double unit_roundoff(DType dtype) {
  return power_of_two(-format_of(dtype).fraction_bits - 1);
}

// The nearest number of the format, ties to even.
inline double rounded_to(DType dtype, double value) {
  const Format f = format_of(dtype);
  if (!std::isfinite(value) || dtype == DType::kFloat64) return value;
  // The last bit of a float64 of this size is a step of the format: the sum is rounded to one.
  const double large = 1.5 * power_of_two(exponent_in(f, value) - f.fraction_bits + 52);
  const double near = value + large - large;
  const double largest = (2.0 - 2 * unit_roundoff(dtype)) * power_of_two(f.max_exponent);
  return std::copysign(std::abs(near) > largest ? kInfinity : near, value);
}

// The bits of a number that the 16-bit format holds exactly.
inline std::uint16_t bits16_of(DType dtype, double value) {
  const Format f = format_of(dtype);
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int special = (2 * f.max_exponent + 1) << f.fraction_bits;
  if (std::isnan(value))
    return static_cast<std::uint16_t>(sign | special | 1 << (f.fraction_bits - 1));
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | special);
  const int exponent = exponent_in(f, value);
  const auto fraction =
      static_cast<int>(std::abs(value) * power_of_two(f.fraction_bits - exponent));
  const int biased = exponent - f.min_exponent;  // a normal number's hidden bit adds the missing 1
  return static_cast<std::uint16_t>(sign | ((biased << f.fraction_bits) + fraction));
}

inline double from_bits16(DType dtype, std::uint16_t bits) {
  const Format f = format_of(dtype);
  const int exponent = (bits & 0x7fff) >> f.fraction_bits;
  const int fraction = bits & ((1 << f.fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 2 * f.max_exponent + 1) return fraction ? kNan : sign * kInfinity;
  const int hidden = exponent == 0 ? 0 : 1 << f.fraction_bits;
  const int step = std::max(exponent, 1) - 1 + f.min_exponent - f.fraction_bits;
  return sign * (hidden + fraction) * power_of_two(step);
}

inline void encode(DType dtype, double value, void* out) {
  if (dtype == DType::kFloat64) {
    std::memcpy(out, &value, sizeof(value));
  } else if (dtype == DType::kFloat32) {
    const float single = static_cast<float>(value);
    std::memcpy(out, &single, sizeof(single));
  } else if (dtype == DType::kBool) {
    *static_cast<std::uint8_t*>(out) = value != 0;
  } else if (dtype == DType::kInt32) {
    const auto whole = static_cast<std::int32_t>(value);
    std::memcpy(out, &whole, sizeof(whole));
  } else {
    const std::uint16_t bits = bits16_of(dtype, rounded_to(dtype, value));
    std::memcpy(out, &bits, sizeof(bits));
  }
}

inline double decode(DType dtype, const void* in) {
  if (dtype == DType::kBool) return *static_cast<const std::uint8_t*>(in);
  if (dtype == DType::kFloat64) {
    double value;
    std::memcpy(&value, in, sizeof(value));
    return value;
  }
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, in, sizeof(value));
    return value;
  }
  if (dtype == DType::kInt32) {
    std::int32_t value;
    std::memcpy(&value, in, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, in, sizeof(bits));
  return from_bits16(dtype, bits);
}

using Values = std::vector<double>;

// Fresh numbers at each run of the program; the seed is printed, and TFK_TEST_SEED repeats it.
std::mt19937_64& random_engine();

// Normal numbers, rounded to dtype.
inline Values random_normal(std::int64_t count, DType dtype, double mean = 0,
                            double deviation = 1) {
  std::mt19937_64& engine = random_engine();
  std::normal_distribution<double> normal(mean, deviation);
  Values values(count);
  for (double& value : values) value = rounded_to(dtype, normal(engine));
  return values;
}

inline Values random_bool(std::int64_t count, double share_of_true) {
  std::bernoulli_distribution coin(share_of_true);
  Values values(count);
  for (double& value : values) value = coin(random_engine());
  return values;
}

}  // namespace transformer_kernels::testing
