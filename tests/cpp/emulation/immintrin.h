// SPDX-License-Identifier: MIT
// AVX-512 and AMX for processors without them, so that their kernels are tested everywhere. This
// file is found before the compiler's <immintrin.h>, and maps the intrinsics that csrc/core/cpu/
// uses to SIMDe; those that SIMDe 0.7.4 lacks follow lane by lane. Their meaning is that of Intel's
// guide.
#pragma once

#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>

namespace transformer_kernels::emulation {

template <class T, class Register>
using Lanes = std::array<T, sizeof(Register) / sizeof(T)>;

template <class T, class Register>
Lanes<T, Register> lanes_of(Register a) {
  return std::bit_cast<Lanes<T, Register>>(a);
}

template <class Register, class T, class Mask>
Register masked_load(Mask mask, const void* from) {
  Lanes<T, Register> lanes{};
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (mask >> i & 1) lanes[i] = static_cast<const T*>(from)[i];
  }
  return std::bit_cast<Register>(lanes);
}

template <class T, class Register, class Mask>
void masked_store(void* to, Mask mask, Register a) {
  const auto lanes = lanes_of<T>(a);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (mask >> i & 1) static_cast<T*>(to)[i] = lanes[i];
  }
}

template <class Register>
void stream(void* to, Register a) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(a) != 0) std::abort();
  std::memcpy(to, &a, sizeof(a));
}

// Lanes of From as lanes of To.
template <class Result, class To, class From, class Register, class Convert>
Result converted(Register a, Convert convert) {
  const auto from = lanes_of<From>(a);
  Lanes<To, Result> to;
  std::transform(from.begin(), from.end(), to.begin(), convert);
  return std::bit_cast<Result>(to);
}

// Lane i is lane source(i) of a.
template <class T, class Register, class Source>
Register permuted(Register a, Source source) {
  const auto from = lanes_of<T>(a);
  Lanes<T, Register> to;
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[source(i)];
  return std::bit_cast<Register>(to);
}

// VPERMILPS and VPERMILPD: two bits of `control` for each of four lanes, one for each of two.
inline __m512 permuted_in_fours(__m512 a, unsigned control) {
  return permuted<float>(
      a, [&](std::size_t i) { return (i & ~std::size_t{3}) | (control >> 2 * (i % 4) & 3); });
}
inline __m512d permuted_in_twos(__m512d a, unsigned control) {
  return permuted<double>(
      a, [&](std::size_t i) { return (i & ~std::size_t{1}) | (control >> i & 1); });
}

// Combines lanes by halves, as the compilers' own sequences do.
template <class T, class Register, class Combine>
T reduced(Register a, Combine combine) {
  auto lanes = lanes_of<T>(a);
  for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}

inline __mmask16 nonzero_bytes(__m128i a) {
  const auto lanes = lanes_of<std::uint8_t>(a);
  unsigned mask = 0;
  for (std::size_t i = 0; i < lanes.size(); ++i) mask |= (lanes[i] != 0 ? 1u : 0u) << i;
  return static_cast<__mmask16>(mask);
}

// VFPCLASSPS, of subnormal numbers alone.
inline __mmask16 subnormal_lanes(__m512 a, int classes) {
  if (classes != 0x20) std::abort();
  const auto lanes = lanes_of<float>(a);
  unsigned mask = 0;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    mask |= (std::fpclassify(lanes[i]) == FP_SUBNORMAL ? 1u : 0u) << i;
  }
  return static_cast<__mmask16>(mask);
}

// VCVTNEPS2BF16: to nearest even; subnormal numbers are 0, NaN becomes quiet.
inline std::uint16_t bfloat16_of(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude < 0x00800000) return static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// An estimate of 14 bits: the reciprocal without the end of its significand.
inline float reciprocal_estimate(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(1 / x) & ~0x1ffu);
}

// x minus the largest whole number at or below it; 0 for infinities.
inline float above_floor(float x) { return std::isinf(x) ? 0.0f : x - std::floor(x); }

// VCVTNE2PS2BF16: the elements of b, then those of a.
template <class Register>
Register bfloat16_of_two(Register a, Register b) {
  Lanes<std::uint16_t, Register> to;
  const auto low = lanes_of<std::uint32_t>(b);
  const auto high = lanes_of<std::uint32_t>(a);
  for (std::size_t i = 0; i < low.size(); ++i) {
    to[i] = bfloat16_of(low[i]);
    to[i + low.size()] = bfloat16_of(high[i]);
  }
  return std::bit_cast<Register>(to);
}

// A bfloat16 factor of a product; subnormal numbers are 0.
inline float factor(std::uint16_t bits) {
  const bool normal = (bits & 0x7f80) != 0;
  return std::bit_cast<float>(static_cast<std::uint32_t>(normal ? bits : bits & 0x8000) << 16);
}

// The tile registers of AMX, 16 rows of 64 bytes each, all of the full size.
using Tile = std::array<std::array<std::uint8_t, 64>, 16>;

inline bool& tiles_in_use() {
  thread_local bool in_use = false;
  return in_use;
}

inline std::array<Tile, 8>& tiles() {
  thread_local std::array<Tile, 8> registers{};
  if (!tiles_in_use()) std::abort();
  return registers;
}

// LDTILECFG faults on most other operands; the emulation has registers of the full size alone.
inline void tile_configure(const void* operand) {
  std::array<std::uint8_t, 64> bytes{};
  std::memcpy(bytes.data(), operand, bytes.size());
  std::array<std::uint8_t, 64> full{1};
  for (std::size_t tile = 0; tile < 8; ++tile) {
    full[16 + 2 * tile] = 64;
    full[48 + tile] = 16;
  }
  if (bytes != full) std::abort();
  tiles_in_use() = true;
}

inline void tile_load(int tile, const void* from, std::ptrdiff_t stride) {
  for (int row = 0; row < 16; ++row) {
    std::memcpy(tiles()[tile][row].data(), static_cast<const char*>(from) + row * stride, 64);
  }
}
inline void tile_store(int tile, void* to, std::ptrdiff_t stride) {
  for (int row = 0; row < 16; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, tiles()[tile][row].data(), 64);
  }
}
inline void tile_zero(int tile) { tiles()[tile] = {}; }

// TDPBF16PS: row r of c gets the pairs of row r of a times those of all rows of b.
inline void tile_dot(int c, int a, int b) {
  for (int row = 0; row < 16; ++row) {
    auto sum = std::bit_cast<std::array<float, 16>>(tiles()[c][row]);
    const auto left = std::bit_cast<std::array<std::uint16_t, 32>>(tiles()[a][row]);
    for (int k = 0; k < 16; ++k) {
      const auto right = std::bit_cast<std::array<std::uint16_t, 32>>(tiles()[b][k]);
      for (int col = 0; col < 16; ++col) {
        sum[col] += factor(left[2 * k]) * factor(right[2 * col]);
        sum[col] += factor(left[2 * k + 1]) * factor(right[2 * col + 1]);
      }
    }
    tiles()[c][row] = std::bit_cast<std::array<std::uint8_t, 64>>(sum);
  }
}

}  // namespace transformer_kernels::emulation

#define TFK_EMULATED transformer_kernels::emulation

#define _mm512_maskz_loadu_ps(mask, from) (TFK_EMULATED::masked_load<__m512, float>(mask, from))
#define _mm512_maskz_loadu_pd(mask, from) (TFK_EMULATED::masked_load<__m512d, double>(mask, from))
#define _mm256_maskz_loadu_epi16(mask, from) \
  (TFK_EMULATED::masked_load<__m256i, std::uint16_t>(mask, from))
#define _mm_maskz_loadu_epi8(mask, from) \
  (TFK_EMULATED::masked_load<__m128i, std::uint8_t>(mask, from))
#define _mm512_mask_storeu_ps(to, mask, a) TFK_EMULATED::masked_store<float>(to, mask, a)
#define _mm512_mask_storeu_pd(to, mask, a) TFK_EMULATED::masked_store<double>(to, mask, a)
#define _mm256_mask_storeu_epi16(to, mask, a) TFK_EMULATED::masked_store<std::uint16_t>(to, mask, a)
#define _mm512_stream_ps(to, a) TFK_EMULATED::stream(to, a)
#define _mm512_stream_pd(to, a) TFK_EMULATED::stream(to, a)
#define _mm512_stream_si512(to, a) TFK_EMULATED::stream(to, a)
#undef _mm512_permute_ps
#undef _mm512_permute_pd
#define _mm512_permute_ps(a, control) TFK_EMULATED::permuted_in_fours(a, control)
#define _mm512_permute_pd(a, control) TFK_EMULATED::permuted_in_twos(a, control)
#define _mm512_reduce_add_ps(a) (TFK_EMULATED::reduced<float>(a, std::plus<>()))
#define _mm512_reduce_add_pd(a) (TFK_EMULATED::reduced<double>(a, std::plus<>()))
#define _mm512_reduce_max_ps(a) \
  (TFK_EMULATED::reduced<float>(a, [](float x, float y) { return x > y ? x : y; }))
#define _mm512_reduce_max_pd(a) \
  (TFK_EMULATED::reduced<double>(a, [](double x, double y) { return x > y ? x : y; }))
#define _mm_test_epi8_mask(a, b) TFK_EMULATED::nonzero_bytes(_mm_and_si128(a, b))
#define _mm512_cvtepu16_epi32(a) \
  (TFK_EMULATED::converted<__m512i, std::uint32_t, std::uint16_t>(a, std::identity()))
#define _mm512_cvtepu8_epi32(a) \
  (TFK_EMULATED::converted<__m512i, std::uint32_t, std::uint8_t>(a, std::identity()))
#define _mm512_cvtepi8_epi32(a) \
  (TFK_EMULATED::converted<__m512i, std::int32_t, std::int8_t>(a, std::identity()))
#define _mm512_cvtepi32_epi16(a)                                   \
  (TFK_EMULATED::converted<__m256i, std::uint16_t, std::uint32_t>( \
      a, [](std::uint32_t x) { return static_cast<std::uint16_t>(x); }))
#define _mm512_fpclass_ps_mask(a, classes) TFK_EMULATED::subnormal_lanes(a, classes)
#define _mm512_cvtepi32_ps(a)                            \
  (TFK_EMULATED::converted<__m512, float, std::int32_t>( \
      a, [](std::int32_t x) { return static_cast<float>(x); }))
#define _mm512_cvtepu8_epi16(a) \
  (TFK_EMULATED::converted<__m512i, std::uint16_t, std::uint8_t>(a, std::identity()))
#define _mm512_cvtph_ps(a)                                \
  (TFK_EMULATED::converted<__m512, float, std::uint16_t>( \
      a, [](std::uint16_t half) { return _cvtsh_ss(half); }))
#define _mm512_cvtps_ph(a, rounding)                       \
  (TFK_EMULATED::converted<__m256i, std::uint16_t, float>( \
      a, [](float value) { return _cvtss_sh(value, rounding); }))
#define _mm512_cvtneps_pbh(a) \
  (TFK_EMULATED::converted<__m256i, std::uint16_t, std::uint32_t>(a, TFK_EMULATED::bfloat16_of))
#define _mm512_reduce_ps(a, rounding) \
  (TFK_EMULATED::converted<__m512, float, float>(a, TFK_EMULATED::above_floor))
#define _mm512_rcp14_ps(a) \
  (TFK_EMULATED::converted<__m512, float, float>(a, TFK_EMULATED::reciprocal_estimate))
#define _mm512_cvtne2ps_pbh(a, b) TFK_EMULATED::bfloat16_of_two(a, b)
// SIMDe's name has the arguments of the instruction with a mask.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(configuration) TFK_EMULATED::tile_configure(configuration)
#define _tile_release() TFK_EMULATED::tiles_in_use() = false
#define _tile_loadd(tile, from, stride) TFK_EMULATED::tile_load(tile, from, stride)
#define _tile_stored(tile, to, stride) TFK_EMULATED::tile_store(tile, to, stride)
#define _tile_zero(tile) TFK_EMULATED::tile_zero(tile)
#define _tile_dpbf16ps(c, a, b) TFK_EMULATED::tile_dot(c, a, b)
