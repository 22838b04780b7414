// SPDX-License-Identifier: MIT
// States of 8 bits, with the codes of code_lines.h. Compiled once per instruction set; see
// core/cpu/isa.h.
#pragma once

#include "core/cpu/row_loop.h"
#include "core/cpu/simd_integers.h"
#include "optimizer/code_lines.h"
#include "optimizer/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {

template <int kBits>
struct Codes : CodeLines<kBits> {
  using Lines = CodeLines<kBits>;

  // The value of whole codes where the scale is 1.
  template <class V>
  TFK_INLINE static V value(V code) {
    V top = code * V::of(Lines::power_of_ten(0));
#pragma GCC unroll 8
    for (int digit = 1; digit < kBits; ++digit) {
      const CodeLine line = Lines::value(digit);
      top = max(fma(code, V::of(line.slope), V::of(line.start)), top);
    }
    return top;
  }

  // The place of numbers, 0 or more, among the values of the codes 0, 1, ...
  template <class V>
  TFK_INLINE static V place(V y) {
    V least = y * V::of(1 / Lines::power_of_ten(0));
#pragma GCC unroll 8
    for (int digit = 0; digit < kBits; ++digit) {
      const CodeLine line = Lines::place(digit);
      least = min(fma(y, V::of(line.slope), V::of(line.start)), least);
    }
    return least;
  }
};

template <bool kSigned>
TFK_FLATTEN void read_codes(const std::uint8_t* codes, float scale, float* x, std::int64_t count) {
  using V = Vec<float>;
  const auto* const bytes = reinterpret_cast<const std::int8_t*>(codes);
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    const V code = load_bytes(bytes + i, lanes);
    const auto negative = is_negative(code);
    V value;
    if constexpr (kSigned) {
      const V magnitude = Codes<7>::value(abs(code));
      value = select(negative, V::of(0) - magnitude, magnitude);
    } else {
      value = Codes<8>::value(select(negative, code + V::of(256), code));
    }
    store(x + i, value * V::of(scale), lanes);
  });
}

// The largest magnitude; NaN where a number is not finite.
TFK_FLATTEN inline float largest_of(const float* x, std::int64_t count) {
  auto tops = Slots<float>::of(0);
  auto zeros = Slots<float>::of(0);
  for_each_vector<float>(count, [&](std::int64_t i, int slot, auto lanes) {
    const auto v = load(x + i, lanes);
    tops[slot] = max(abs(v), tops[slot]);
    zeros[slot] = zeros[slot] + (v - v);
  });
  return tops.largest() + zeros.sum();
}

// Writes the codes of a block and returns its scale. Each number becomes one of the two codes
// beside it, by 16 random bits. A number that is not signed and above 0 does not become 0, by which
// a step would be divided. A block with a number that is not finite has NaN for its scale.
template <bool kSigned>
TFK_FLATTEN float write_codes(const float* x, const std::uint16_t* random, std::uint8_t* codes,
                              std::int64_t count) {
  using V = Vec<float>;
  using Of = Codes<kSigned ? 7 : 8>;
  const float largest = largest_of(x, count);
  if (!(largest >= 0)) {
    __builtin_memset(codes, 1, count);
    return largest;
  }
  const float scale = largest / Of::largest_value();
  const V inverse = V::of(scale > 0 ? 1 / scale : 0);
  alignas(64) float place[kStateBlock];
  for (std::int64_t i = 0; i < count; ++i) place[i] = static_cast<float>(random[i]) * 0x1p-16f;
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    const V v = load(x + i, lanes);
    V code = Of::place(abs(v) * inverse) + load(place + i, lanes);
    code = min(code, V::of(Of::kLargest));
    if constexpr (kSigned) {
      code = select(is_negative(v), V::of(0) - code, code);
    } else {
      code = select(equal(v, V::of(0)), V::of(0), max(code, V::of(1)));
    }
    store(place + i, code, lanes);
  });
  for (std::int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::uint8_t>(static_cast<int>(place[i]));
  }
  return scale;
}

}  // namespace transformer_kernels::cpu::TFK_ISA
