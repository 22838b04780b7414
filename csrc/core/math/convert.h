// SPDX-License-Identifier: MIT
// Conversions of one number between its storage type and the type that it is computed in, in host
// code. Vectors have instructions for them (core/cpu/simd_*.h).
#pragma once

#include <cstdint>

#include "core/inline.h"
#include "core/types.h"

namespace transformer_kernels {

TFK_INLINE float widen(float value) { return value; }
TFK_INLINE double widen(double value) { return value; }

TFK_INLINE float widen(BFloat16 value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value.bits) << 16);
}

TFK_INLINE float widen(Half value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000) << 16;
  const std::uint32_t magnitude = value.bits & 0x7fff;
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  const std::uint32_t bias = magnitude >= 0x7c00 ? 224u << 23 : 112u << 23;
  const std::uint32_t bits =
      magnitude < 0x400 ? __builtin_bit_cast(std::uint32_t, subnormal) : (magnitude << 13) + bias;
  return __builtin_bit_cast(float, sign | bits);
}

TFK_INLINE void narrow(float value, float& out) { out = value; }
TFK_INLINE void narrow(double value, double& out) { out = value; }

TFK_INLINE void narrow(float value, BFloat16& out) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  out.bits = static_cast<std::uint16_t>(value == value ? rounded : (bits >> 16) | 0x40);
}

TFK_INLINE void narrow(float value, Half& out) {
  const auto all_bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = all_bits >> 16 & 0x8000;
  const std::uint32_t bits = all_bits & 0x7fffffff;
  // The last bit of a number in [0.5, 1) is worth 2^-24, like that of a subnormal half.
  const auto subnormal =
      __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, bits) + 0.5f) - 0x3f000000;
  const std::uint32_t normal = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
  const std::uint32_t finite = bits < 0x38800000 ? subnormal : normal;
  const std::uint32_t special = bits > 0x7f800000 ? 0x7e00 | (bits >> 13 & 0x3ff) : 0x7c00;
  out.bits = static_cast<std::uint16_t>(sign | (bits < 0x477ff000 ? finite : special));
}

}  // namespace transformer_kernels
