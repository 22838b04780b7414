// SPDX-License-Identifier: MIT
// Vectors of float from signed integers of 8 and 4 bits. For sources that are compiled once per
// instruction set.
//
//   load_bytes(p, lanes)             from std::int8_t; lanes as in simd.h
//   Nibbles::of(scale).load(p)       from kLanes bytes of two 4-bit numbers each, times the scale
//   lower_of(both)  upper_of(both)   the first and the second half of these in order
#pragma once

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

// Numbers at even places, which lie in low nibbles, and those at odd ones.
struct EvenOdd {
  Vec<float> even;
  Vec<float> odd;
};

#if TFK_ISA_LEVEL >= 2

TFK_INLINE VecF floats_of(__m128i bytes) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
TFK_INLINE VecF load_bytes(const std::int8_t* p, All) {
  return floats_of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TFK_INLINE VecF load_bytes(const std::int8_t* p, First lanes) {
  return floats_of(_mm_maskz_loadu_epi8(static_cast<__mmask16>(first_bits(lanes)), p));
}

// A number is looked up among its 16 values, which are scaled beforehand: the instruction reads the
// low nibble of each lane.
struct Nibbles {
  VecF values;

  TFK_INLINE static Nibbles of(float scale) {
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return {VecF{values} * VecF::of(scale)};
  }
  TFK_INLINE EvenOdd load(const std::uint8_t* p) const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m512i low = _mm512_cvtepu8_epi32(bytes);
    const __m512i high = _mm512_srli_epi32(low, 4);
    return {{_mm512_permutexvar_ps(low, values.v)}, {_mm512_permutexvar_ps(high, values.v)}};
  }
};

// Elements of even and odd in turns, from place `start` of each on.
TFK_INLINE VecF in_turns(EvenOdd both, int start) {
  const __m512i half =
      _mm512_add_epi32(_mm512_srli_epi32(lane_index(), 1), _mm512_set1_epi32(start));
  const __m512i index = _mm512_mask_add_epi32(half, 0xaaaa, half, _mm512_set1_epi32(VecF::kLanes));
  return pick(both.even, index, both.odd);
}
TFK_INLINE VecF lower_of(EvenOdd both) { return in_turns(both, 0); }
TFK_INLINE VecF upper_of(EvenOdd both) { return in_turns(both, VecF::kLanes / 2); }

#elif TFK_ISA_LEVEL == 1

TFK_INLINE VecF load_bytes(const std::int8_t* p, All) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
}

// Each number is shifted to the upper end of a lane and back, which repeats its sign.
struct Nibbles {
  VecF scale;

  TFK_INLINE static Nibbles of(float scale) { return {VecF::of(scale)}; }
  TFK_INLINE EvenOdd load(const std::uint8_t* p) const {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m256i both = _mm256_cvtepu8_epi32(bytes);
    const __m256i even = _mm256_srai_epi32(_mm256_slli_epi32(both, 28), 28);
    const __m256i odd = _mm256_srai_epi32(_mm256_slli_epi32(both, 24), 28);
    return {VecF{_mm256_cvtepi32_ps(even)} * scale, VecF{_mm256_cvtepi32_ps(odd)} * scale};
  }
};

TFK_INLINE VecF lower_of(EvenOdd both) { return first_of(both.even, both.odd); }
TFK_INLINE VecF upper_of(EvenOdd both) { return second_of(both.even, both.odd); }

#elif defined(TFK_ISA_NEON)

TFK_INLINE VecF load_bytes(const std::int8_t* p, All) {
  const int32x4_t both = vreinterpretq_s32_u32(vshlq_n_u32(four_bytes(p), 24));
  return {vcvtq_f32_s32(vshrq_n_s32(both, 24))};
}

// Each number is shifted to the upper end of a lane and back, which repeats its sign.
struct Nibbles {
  VecF scale;

  TFK_INLINE static Nibbles of(float scale) { return {VecF::of(scale)}; }
  TFK_INLINE EvenOdd load(const std::uint8_t* p) const {
    const int32x4_t both = vreinterpretq_s32_u32(four_bytes(p));
    const int32x4_t even = vshrq_n_s32(vshlq_n_s32(both, 28), 28);
    const int32x4_t odd = vshrq_n_s32(vshlq_n_s32(both, 24), 28);
    return {VecF{vcvtq_f32_s32(even)} * scale, VecF{vcvtq_f32_s32(odd)} * scale};
  }
};

TFK_INLINE VecF lower_of(EvenOdd both) { return {vzip1q_f32(both.even.v, both.odd.v)}; }
TFK_INLINE VecF upper_of(EvenOdd both) { return {vzip2q_f32(both.even.v, both.odd.v)}; }

#else

TFK_INLINE Vec<float> load_bytes(const std::int8_t* p, All) {
  return Vec<float>::make([&](int i) { return static_cast<float>(p[i]); });
}

struct Nibbles {
  float scale;

  TFK_INLINE static Nibbles of(float scale) { return {scale}; }
  TFK_INLINE EvenOdd load(const std::uint8_t* p) const {
    return {Vec<float>::make([&](int i) { return upper_nibble(p[i] << 4) * scale; }),
            Vec<float>::make([&](int i) { return upper_nibble(p[i]) * scale; })};
  }

 private:
  TFK_INLINE static float upper_nibble(int byte) {
    return static_cast<float>(static_cast<std::int8_t>(byte) >> 4);
  }
};

TFK_INLINE Vec<float> in_turns(EvenOdd both, int start) {
  return Vec<float>::make(
      [&](int i) { return (i % 2 == 0 ? both.even : both.odd).lane[start + i / 2]; });
}
TFK_INLINE Vec<float> lower_of(EvenOdd both) { return in_turns(both, 0); }
TFK_INLINE Vec<float> upper_of(EvenOdd both) { return in_turns(both, Vec<float>::kLanes / 2); }

#endif

#if TFK_ISA_LEVEL <= 1
TFK_INLINE Vec<float> load_bytes(const std::int8_t* p, First lanes) {
  return load_bytes(Staged<std::int8_t, Vec<float>::kLanes>::from(p, lanes).data, All{});
}
#endif

}  // namespace transformer_kernels::cpu::TFK_ISA
