// SPDX-License-Identifier: MIT
// Numbers as the storage types hold them, from first principles: nothing here is shared with the
// library's conversions, so that the two can be compared.
#pragma once

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

// Half the distance between 1 and the next number: the largest relative error of one rounding.
inline double unit_roundoff(DType dtype) {
  return std::ldexp(1.0, -format_of(dtype).fraction_bits - 1);
}

// The nearest number of the format, ties to even.
inline double rounded_to(DType dtype, double value) {
  const Format f = format_of(dtype);
  if (!std::isfinite(value) || value == 0 || dtype == DType::kFloat64) return value;
  const int exponent = std::max(std::ilogb(value), f.min_exponent);
  const double step = std::ldexp(1.0, exponent - f.fraction_bits);
  const double near = std::nearbyint(value / step) * step;
  const double largest = std::ldexp(2.0 - std::ldexp(1.0, -f.fraction_bits), f.max_exponent);
  return std::abs(near) > largest ? std::copysign(kInfinity, value) : near;
}

// The bits of a number that the 16-bit format holds exactly.
inline std::uint16_t bits16_of(DType dtype, double value) {
  const Format f = format_of(dtype);
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int special = (2 * f.max_exponent + 1) << f.fraction_bits;
  if (std::isnan(value))
    return static_cast<std::uint16_t>(sign | special | 1 << (f.fraction_bits - 1));
  const double magnitude = std::abs(value);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | special);
  if (magnitude == 0) return static_cast<std::uint16_t>(sign);
  const int exponent = std::max(std::ilogb(magnitude), f.min_exponent);
  const int fraction = static_cast<int>(std::ldexp(magnitude, f.fraction_bits - exponent));
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
  return sign * std::ldexp(hidden + fraction,
                           std::max(exponent, 1) - 1 + f.min_exponent - f.fraction_bits);
}

inline void encode(DType dtype, double value, void* out) {
  if (dtype == DType::kFloat64) {
    std::memcpy(out, &value, sizeof(value));
  } else if (dtype == DType::kFloat32) {
    const float single = static_cast<float>(value);
    std::memcpy(out, &single, sizeof(single));
  } else if (dtype == DType::kBool) {
    *static_cast<std::uint8_t*>(out) = value != 0;
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
  std::normal_distribution<double> normal(mean, deviation);
  Values values(count);
  for (double& value : values) value = rounded_to(dtype, normal(random_engine()));
  return values;
}

inline Values random_bool(std::int64_t count, double share_of_true) {
  std::bernoulli_distribution coin(share_of_true);
  Values values(count);
  for (double& value : values) value = coin(random_engine());
  return values;
}

}  // namespace transformer_kernels::testing
