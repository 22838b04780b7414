// SPDX-License-Identifier: MIT
// AVX-512 F, BW, VL and DQ: 64-byte vectors; from level 3 on with the conversions of AVX512-BF16.
#pragma once

#include <immintrin.h>

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr int kVectorRegisters = 32;

template <>
struct Vec<float> {
  static constexpr int kLanes = 16;
  __m512 v;
  TFK_INLINE static Vec of(float value) { return {_mm512_set1_ps(value)}; }
};

template <>
struct Vec<double> {
  static constexpr int kLanes = 8;
  __m512d v;
  TFK_INLINE static Vec of(double value) { return {_mm512_set1_pd(value)}; }
};

template <>
struct Mask<float> {
  __mmask16 v;
};
template <>
struct Mask<double> {
  __mmask8 v;
};

using VecF = Vec<float>;
using VecD = Vec<double>;

TFK_INLINE VecF operator+(VecF a, VecF b) { return {_mm512_add_ps(a.v, b.v)}; }
TFK_INLINE VecD operator+(VecD a, VecD b) { return {_mm512_add_pd(a.v, b.v)}; }
TFK_INLINE VecF operator-(VecF a, VecF b) { return {_mm512_sub_ps(a.v, b.v)}; }
TFK_INLINE VecD operator-(VecD a, VecD b) { return {_mm512_sub_pd(a.v, b.v)}; }
TFK_INLINE VecF operator*(VecF a, VecF b) { return {_mm512_mul_ps(a.v, b.v)}; }
TFK_INLINE VecD operator*(VecD a, VecD b) { return {_mm512_mul_pd(a.v, b.v)}; }
TFK_INLINE VecF operator/(VecF a, VecF b) { return {_mm512_div_ps(a.v, b.v)}; }
TFK_INLINE VecD operator/(VecD a, VecD b) { return {_mm512_div_pd(a.v, b.v)}; }
TFK_INLINE VecF fma(VecF a, VecF b, VecF c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TFK_INLINE VecD fma(VecD a, VecD b, VecD c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
TFK_INLINE VecF max(VecF a, VecF b) { return {_mm512_max_ps(a.v, b.v)}; }
TFK_INLINE VecD max(VecD a, VecD b) { return {_mm512_max_pd(a.v, b.v)}; }
TFK_INLINE VecF min(VecF a, VecF b) { return {_mm512_min_ps(a.v, b.v)}; }
TFK_INLINE VecD min(VecD a, VecD b) { return {_mm512_min_pd(a.v, b.v)}; }
TFK_INLINE VecF abs(VecF a) { return {_mm512_abs_ps(a.v)}; }
TFK_INLINE VecD abs(VecD a) { return {_mm512_abs_pd(a.v)}; }

// Within 1 ulp: an estimate of 14 bits, and one step of Newton's.
TFK_INLINE VecF reciprocal(VecF a) {
  const __m512 guess = _mm512_rcp14_ps(a.v);
  const __m512 rest = _mm512_fnmadd_ps(a.v, guess, _mm512_set1_ps(1));
  return {_mm512_fmadd_ps(guess, rest, guess)};
}

TFK_INLINE float reduce_add(VecF a) { return _mm512_reduce_add_ps(a.v); }
TFK_INLINE double reduce_add(VecD a) { return _mm512_reduce_add_pd(a.v); }
TFK_INLINE float reduce_max(VecF a) { return _mm512_reduce_max_ps(a.v); }
TFK_INLINE double reduce_max(VecD a) { return _mm512_reduce_max_pd(a.v); }

TFK_INLINE VecF swap_pairs(VecF a) { return {_mm512_permute_ps(a.v, 0xb1)}; }
TFK_INLINE VecD swap_pairs(VecD a) { return {_mm512_permute_pd(a.v, 0x55)}; }

TFK_INLINE unsigned first_bits(First lanes) { return (1u << lanes.count) - 1; }

template <class T>
TFK_INLINE Mask<accumulate_t<T>> first(First lanes) {
  return {static_cast<decltype(Mask<accumulate_t<T>>::v)>(first_bits(lanes))};
}
template <class T>
TFK_INLINE Mask<accumulate_t<T>> nonzero_bytes(__m128i bytes) {
  return {static_cast<decltype(Mask<accumulate_t<T>>::v)>(_mm_test_epi8_mask(bytes, bytes))};
}
template <class T>
TFK_INLINE Mask<accumulate_t<T>> nonzero(const std::uint8_t* bytes, First lanes) {
  return nonzero_bytes<T>(_mm_maskz_loadu_epi8(static_cast<__mmask16>(first_bits(lanes)), bytes));
}
template <class T>
TFK_INLINE Mask<accumulate_t<T>> nonzero(const std::uint8_t* bytes, All) {
  return nonzero<T>(bytes, First{Vec<accumulate_t<T>>::kLanes});
}
TFK_INLINE Mask<float> equal(VecF a, VecF b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
TFK_INLINE Mask<double> equal(VecD a, VecD b) { return {_mm512_cmp_pd_mask(a.v, b.v, _CMP_EQ_OQ)}; }
TFK_INLINE Mask<float> is_negative(VecF a) {
  return {_mm512_movepi32_mask(_mm512_castps_si512(a.v))};
}
TFK_INLINE Mask<double> is_negative(VecD a) {
  return {_mm512_movepi64_mask(_mm512_castpd_si512(a.v))};
}
TFK_INLINE VecF select(Mask<float> mask, VecF yes, VecF no) {
  return {_mm512_mask_blend_ps(mask.v, no.v, yes.v)};
}
TFK_INLINE VecD select(Mask<double> mask, VecD yes, VecD no) {
  return {_mm512_mask_blend_pd(mask.v, no.v, yes.v)};
}

TFK_INLINE VecF round_product(VecF a, VecF b) {
  return {
      _mm512_roundscale_ps(_mm512_mul_ps(a.v, b.v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TFK_INLINE VecF whole(VecF n) { return n; }

// Below this exp is 0: times_power_of_two() flushes what may be less than the smallest normal
// number.
inline constexpr float kExpLowest = -88.0f;

// A lane that underflows would cost 60 times as much as the whole instruction, and under a mask
// most lanes do; those that the instruction leaves out cost nothing.
TFK_INLINE VecF times_power_of_two(VecF a, VecF n) {
  constexpr float kLeastPower = -126.0f;
  const __mmask16 normal = _mm512_cmp_ps_mask(n.v, _mm512_set1_ps(kLeastPower), _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_ps(normal, a.v, n.v)};
}

// Lanes of a, then b, in the order of `index`.
TFK_INLINE VecF pick(VecF a, __m512i index, VecF b) {
  return {_mm512_permutex2var_ps(a.v, index, b.v)};
}
TFK_INLINE __m512i lane_index() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// Exchanges what lies off the diagonal in blocks of kSize rows and columns.
template <int kSize>
TFK_INLINE void transpose_blocks(VecF (&rows)[16]) {
  const __m512i lane = lane_index();
  const __m512i size = _mm512_set1_epi32(kSize);
  const __mmask16 right = _mm512_test_epi32_mask(lane, size);
  // In the numbers of pick(), those of b begin at 16.
  const __m512i other = _mm512_set1_epi32(16 - kSize);
  const __m512i upper = _mm512_mask_add_epi32(lane, right, lane, other);
  const __m512i lower =
      _mm512_mask_add_epi32(_mm512_add_epi32(lane, size), right, lane, _mm512_set1_epi32(16));
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if ((i & kSize) != 0) continue;
    const VecF a = rows[i];
    const VecF b = rows[i + kSize];
    rows[i] = pick(a, upper, b);
    rows[i + kSize] = pick(a, lower, b);
  }
}

TFK_INLINE void transpose(VecF (&rows)[16]) {
  transpose_blocks<8>(rows);
  transpose_blocks<4>(rows);
  transpose_blocks<2>(rows);
  transpose_blocks<1>(rows);
}

TFK_INLINE VecF from_half(__m256i bits) { return {_mm512_cvtph_ps(bits)}; }
TFK_INLINE __m256i to_half(VecF a) {
  return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

TFK_INLINE __m256i load_words(const void* p, All) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
TFK_INLINE __m256i load_words(const void* p, First lanes) {
  return _mm256_maskz_loadu_epi16(static_cast<__mmask16>(first_bits(lanes)), p);
}
TFK_INLINE void store_words(void* p, __m256i words, All) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), words);
}
TFK_INLINE void store_words(void* p, __m256i words, First lanes) {
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>(first_bits(lanes)), words);
}

TFK_INLINE VecF load(const float* p, All) { return {_mm512_loadu_ps(p)}; }
TFK_INLINE VecD load(const double* p, All) { return {_mm512_loadu_pd(p)}; }
TFK_INLINE VecF load(const float* p, First lanes) {
  return {_mm512_maskz_loadu_ps(first<float>(lanes).v, p)};
}
TFK_INLINE VecD load(const double* p, First lanes) {
  return {_mm512_maskz_loadu_pd(first<double>(lanes).v, p)};
}
template <OneVector Lanes>
TFK_INLINE VecF load(const Half* p, Lanes lanes) {
  return from_half(load_words(p, lanes));
}

TFK_INLINE void store(float* p, VecF a, All) { _mm512_storeu_ps(p, a.v); }
TFK_INLINE void store(double* p, VecD a, All) { _mm512_storeu_pd(p, a.v); }
TFK_INLINE void store(float* p, VecF a, First lanes) {
  _mm512_mask_storeu_ps(p, first<float>(lanes).v, a.v);
}
TFK_INLINE void store(double* p, VecD a, First lanes) {
  _mm512_mask_storeu_pd(p, first<double>(lanes).v, a.v);
}
template <OneVector Lanes>
TFK_INLINE void store(Half* p, VecF a, Lanes lanes) {
  store_words(p, to_half(a), lanes);
}

TFK_INLINE void stream(float* p, VecF a) { _mm512_stream_ps(p, a.v); }
TFK_INLINE void stream(double* p, VecD a) { _mm512_stream_pd(p, a.v); }
TFK_INLINE void stream(Half* p, VecF a) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_half(a));
}
TFK_INLINE void stream_fence() { _mm_sfence(); }
TFK_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

// The upper half of each lane is rounded: half of its last bit is added, or just less where that
// bit is 0, so that ties go to even. NaN becomes the NaN of all bits.
TFK_INLINE __m512i round_upper(VecF a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(sum, is_nan, _mm512_set1_epi32(-1));
}

#if TFK_ISA_LEVEL >= 3

// The instruction takes subnormal numbers for 0, as those that multiply pairs do.
TFK_INLINE __m256i to_bfloat16(VecF a) {
  return __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(a.v));
}
TFK_INLINE __mmask16 subnormal_lanes(VecF a) { return _mm512_fpclass_ps_mask(a.v, 0x20); }
// Vectors that hold a subnormal number are seldom: their lanes of such numbers are rounded in
// integers.
TFK_INLINE __m256i to_stored_bfloat16(VecF a) {
  const __m256i words = to_bfloat16(a);
  const __mmask16 subnormal = subnormal_lanes(a);
  if (__builtin_expect(subnormal == 0, true)) return words;
  const __m256i exact = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_upper(a), 16));
  return _mm256_mask_mov_epi16(words, subnormal, exact);
}
template <OneVector Lanes>
TFK_INLINE VecF load(const BFloat16* p, Lanes lanes) {
  const __m512i bits = _mm512_cvtepu16_epi32(load_words(p, lanes));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
}
template <OneVector Lanes>
TFK_INLINE void store(BFloat16* p, VecF a, Lanes lanes) {
  store_words(p, to_stored_bfloat16(a), lanes);
}
TFK_INLINE void stream(BFloat16* p, VecF a) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_stored_bfloat16(a));
}

#else  // for simd_pair.h

using Words = __m512i;
inline constexpr __mmask32 kOddWords = 0xaaaaaaaa;

TFK_INLINE Words load_words(const void* p) { return _mm512_loadu_si512(p); }
TFK_INLINE void store_words(void* p, Words a) { _mm512_storeu_si512(p, a); }
TFK_INLINE void stream_words(void* p, Words a) { _mm512_stream_si512(static_cast<__m512i*>(p), a); }
TFK_INLINE Words words_of_bytes(const std::uint8_t* bytes) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
}

TFK_INLINE VecF even_bfloat16(Words a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a, 16))}; }
TFK_INLINE VecF odd_bfloat16(Words a) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(a, upper))};
}
TFK_INLINE Words to_bfloat16(VecF even, VecF odd) {
  const __m512i low = _mm512_srli_epi32(round_upper(even), 16);
  return _mm512_mask_blend_epi16(kOddWords, low, round_upper(odd));
}

// The elements at even, or odd, places of a followed by b.
TFK_INLINE VecF even_of(VecF a, VecF b) { return pick(a, _mm512_slli_epi32(lane_index(), 1), b); }
TFK_INLINE VecF odd_of(VecF a, VecF b) {
  return pick(a, _mm512_add_epi32(_mm512_slli_epi32(lane_index(), 1), _mm512_set1_epi32(1)), b);
}
// The first and the second half of what takes turns between even and odd.
TFK_INLINE __m512i turns(int start) {
  const __m512i half = _mm512_srli_epi32(lane_index(), 1);
  return _mm512_mask_add_epi32(_mm512_add_epi32(half, _mm512_set1_epi32(start)), 0xaaaa, half,
                               _mm512_set1_epi32(start + VecF::kLanes));
}
TFK_INLINE VecF first_of(VecF even, VecF odd) { return pick(even, turns(0), odd); }
TFK_INLINE VecF second_of(VecF even, VecF odd) { return pick(even, turns(VecF::kLanes / 2), odd); }

TFK_INLINE Mask<float> even_nonzero(Words a) {
  return {_mm512_test_epi32_mask(a, _mm512_set1_epi32(0xffff))};
}
TFK_INLINE Mask<float> odd_nonzero(Words a) {
  return {_mm512_test_epi32_mask(a, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))};
}
TFK_INLINE Mask<float> even_first(First lanes) { return first<float>({(lanes.count + 1) / 2}); }
TFK_INLINE Mask<float> odd_first(First lanes) { return first<float>({lanes.count / 2}); }

#endif

}  // namespace transformer_kernels::cpu::TFK_ISA
