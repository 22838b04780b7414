// SPDX-License-Identifier: MIT
// AVX2 with FMA and F16C: 32-byte vectors.
#pragma once

#include <immintrin.h>

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr int kVectorRegisters = 16;

template <>
struct Vec<float> {
  static constexpr int kLanes = 8;
  __m256 v;
  TFK_INLINE static Vec of(float value) { return {_mm256_set1_ps(value)}; }
};

template <>
struct Vec<double> {
  static constexpr int kLanes = 4;
  __m256d v;
  TFK_INLINE static Vec of(double value) { return {_mm256_set1_pd(value)}; }
};

// A lane is chosen by the sign bit of its mask.
template <>
struct Mask<float> {
  __m256 v;
};
template <>
struct Mask<double> {
  __m256d v;
};

using VecF = Vec<float>;
using VecD = Vec<double>;

TFK_INLINE VecF operator+(VecF a, VecF b) { return {_mm256_add_ps(a.v, b.v)}; }
TFK_INLINE VecD operator+(VecD a, VecD b) { return {_mm256_add_pd(a.v, b.v)}; }
TFK_INLINE VecF operator-(VecF a, VecF b) { return {_mm256_sub_ps(a.v, b.v)}; }
TFK_INLINE VecD operator-(VecD a, VecD b) { return {_mm256_sub_pd(a.v, b.v)}; }
TFK_INLINE VecF operator*(VecF a, VecF b) { return {_mm256_mul_ps(a.v, b.v)}; }
TFK_INLINE VecD operator*(VecD a, VecD b) { return {_mm256_mul_pd(a.v, b.v)}; }
TFK_INLINE VecF operator/(VecF a, VecF b) { return {_mm256_div_ps(a.v, b.v)}; }
TFK_INLINE VecD operator/(VecD a, VecD b) { return {_mm256_div_pd(a.v, b.v)}; }
TFK_INLINE VecF fma(VecF a, VecF b, VecF c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TFK_INLINE VecD fma(VecD a, VecD b, VecD c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }
TFK_INLINE VecF max(VecF a, VecF b) { return {_mm256_max_ps(a.v, b.v)}; }
TFK_INLINE VecD max(VecD a, VecD b) { return {_mm256_max_pd(a.v, b.v)}; }
TFK_INLINE VecF min(VecF a, VecF b) { return {_mm256_min_ps(a.v, b.v)}; }
TFK_INLINE VecD min(VecD a, VecD b) { return {_mm256_min_pd(a.v, b.v)}; }
TFK_INLINE VecF abs(VecF a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
TFK_INLINE VecD abs(VecD a) { return {_mm256_andnot_pd(_mm256_set1_pd(-0.0), a.v)}; }

TFK_INLINE float reduce_add(VecF a) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
TFK_INLINE double reduce_add(VecD a) {
  const __m128d sum = _mm_add_pd(_mm256_castpd256_pd128(a.v), _mm256_extractf128_pd(a.v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(sum, _mm_unpackhi_pd(sum, sum)));
}
TFK_INLINE float reduce_max(VecF a) {
  __m128 top = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  top = _mm_max_ps(top, _mm_movehl_ps(top, top));
  return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
}
TFK_INLINE double reduce_max(VecD a) {
  const __m128d top = _mm_max_pd(_mm256_castpd256_pd128(a.v), _mm256_extractf128_pd(a.v, 1));
  return _mm_cvtsd_f64(_mm_max_sd(top, _mm_unpackhi_pd(top, top)));
}

TFK_INLINE VecF swap_pairs(VecF a) { return {_mm256_permute_ps(a.v, 0xb1)}; }
TFK_INLINE VecD swap_pairs(VecD a) { return {_mm256_permute_pd(a.v, 0x5)}; }

TFK_INLINE __m256i first_dwords(First lanes) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(lanes.count)), index);
}
TFK_INLINE __m256i first_qwords(First lanes) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(lanes.count), _mm256_setr_epi64x(0, 1, 2, 3));
}

template <class T>
TFK_INLINE Mask<accumulate_t<T>> first(First lanes) {
  if constexpr (sizeof(accumulate_t<T>) == sizeof(float)) {
    return {_mm256_castsi256_ps(first_dwords(lanes))};
  } else {
    return {_mm256_castsi256_pd(first_qwords(lanes))};
  }
}
template <class T>
TFK_INLINE Mask<accumulate_t<T>> nonzero(const std::uint8_t* bytes, All) {
  const __m256i zero = _mm256_setzero_si256();
  if constexpr (sizeof(accumulate_t<T>) == sizeof(float)) {
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(eight), zero))};
  } else {
    int four;
    __builtin_memcpy(&four, bytes, sizeof(four));
    const __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    return {_mm256_castsi256_pd(_mm256_cmpgt_epi64(wide, zero))};
  }
}
template <class T>
TFK_INLINE Mask<accumulate_t<T>> nonzero(const std::uint8_t* bytes, First lanes) {
  return nonzero<T>(Staged<std::uint8_t, vec_t<T>::kLanes>::from(bytes, lanes).data, All{});
}
TFK_INLINE Mask<float> equal(VecF a, VecF b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
TFK_INLINE Mask<double> equal(VecD a, VecD b) { return {_mm256_cmp_pd(a.v, b.v, _CMP_EQ_OQ)}; }
TFK_INLINE Mask<float> is_negative(VecF a) { return {a.v}; }
TFK_INLINE Mask<double> is_negative(VecD a) { return {a.v}; }
TFK_INLINE VecF select(Mask<float> mask, VecF yes, VecF no) {
  return {_mm256_blendv_ps(no.v, yes.v, mask.v)};
}
TFK_INLINE VecD select(Mask<double> mask, VecD yes, VecD no) {
  return {_mm256_blendv_pd(no.v, yes.v, mask.v)};
}

// Whole numbers n in [-127, 127] are kept as sums with this: their low bits are the biased exponent
// of 2^n.
inline constexpr float kBiasedZero = 0x1.8p23f + 127;

TFK_INLINE VecF round_product(VecF a, VecF b) {
  return {_mm256_fmadd_ps(a.v, b.v, _mm256_set1_ps(kBiasedZero))};
}
TFK_INLINE VecF whole(VecF n) { return {_mm256_sub_ps(n.v, _mm256_set1_ps(kBiasedZero))}; }

// Below this exp is 0: times_power_of_two() flushes what is less than the smallest normal number.
inline constexpr float kExpLowest = -88.0f;

TFK_INLINE VecF times_power_of_two(VecF a, VecF n) {
  return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n.v), 23)))};
}

TFK_INLINE VecF load(const float* p, All) { return {_mm256_loadu_ps(p)}; }
TFK_INLINE VecD load(const double* p, All) { return {_mm256_loadu_pd(p)}; }
TFK_INLINE VecF load(const Half* p, All) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}

TFK_INLINE __m128i to_half(VecF a) {
  return _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

TFK_INLINE void store(float* p, VecF a, All) { _mm256_storeu_ps(p, a.v); }
TFK_INLINE void store(double* p, VecD a, All) { _mm256_storeu_pd(p, a.v); }
TFK_INLINE void store(Half* p, VecF a, All) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_half(a));
}

TFK_INLINE VecF load(const float* p, First lanes) {
  return {_mm256_maskload_ps(p, first_dwords(lanes))};
}
TFK_INLINE VecD load(const double* p, First lanes) {
  return {_mm256_maskload_pd(p, first_qwords(lanes))};
}
TFK_INLINE VecF load(const Half* p, First lanes) {
  return load(Staged<Half, VecF::kLanes>::from(p, lanes).data, All{});
}
TFK_INLINE void store(float* p, VecF a, First lanes) {
  _mm256_maskstore_ps(p, first_dwords(lanes), a.v);
}
TFK_INLINE void store(double* p, VecD a, First lanes) {
  _mm256_maskstore_pd(p, first_qwords(lanes), a.v);
}
TFK_INLINE void store(Half* p, VecF a, First lanes) {
  Staged<Half, VecF::kLanes> staged;
  store(staged.data, a, All{});
  staged.copy_to(p, lanes);
}

TFK_INLINE void stream(float* p, VecF a) { _mm256_stream_ps(p, a.v); }
TFK_INLINE void stream(double* p, VecD a) { _mm256_stream_pd(p, a.v); }
TFK_INLINE void stream(Half* p, VecF a) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), to_half(a));
}
TFK_INLINE void stream_fence() { _mm_sfence(); }
TFK_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

// Exchanges what lies off the diagonal in blocks of 1, 2 and 4 rows and columns.
TFK_INLINE void transpose(VecF (&rows)[8]) {
  __m256 ones[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    ones[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
    ones[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  __m256 twos[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    twos[i] = _mm256_shuffle_ps(ones[i], ones[i + 2], 0x44);
    twos[i + 1] = _mm256_shuffle_ps(ones[i], ones[i + 2], 0xee);
    twos[i + 2] = _mm256_shuffle_ps(ones[i + 1], ones[i + 3], 0x44);
    twos[i + 3] = _mm256_shuffle_ps(ones[i + 1], ones[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = {_mm256_permute2f128_ps(twos[i], twos[i + 4], 0x20)};
    rows[i + 4] = {_mm256_permute2f128_ps(twos[i], twos[i + 4], 0x31)};
  }
}

// ---------------------------------------------------------------------------- for simd_pair.h

using Words = __m256i;

TFK_INLINE Words load_words(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
TFK_INLINE void store_words(void* p, Words a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
TFK_INLINE void stream_words(void* p, Words a) { _mm256_stream_si256(static_cast<__m256i*>(p), a); }
TFK_INLINE Words words_of_bytes(const std::uint8_t* bytes) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

TFK_INLINE VecF even_bfloat16(Words a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16))}; }
TFK_INLINE VecF odd_bfloat16(Words a) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(a, upper))};
}
// The upper half of each sum is rounded: half of its last bit is added, or just less where that bit
// is 0, so that ties go to even.
TFK_INLINE __m256i add_half(VecF a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
TFK_INLINE __m256i is_nan(VecF a, VecF b) {
  return _mm256_castps_si256(_mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q));
}
TFK_INLINE Words to_bfloat16(VecF even, VecF odd) {
  __m256i low = add_half(even);
  __m256i high = add_half(odd);
  // NaN may have become anything. A branch on whether there is one costs a quarter of removing it
  // always.
  if (__builtin_expect(_mm256_movemask_epi8(is_nan(even, odd)) != 0, 0)) {
    low = _mm256_or_si256(low, is_nan(even, even));
    high = _mm256_or_si256(high, is_nan(odd, odd));
  }
  return _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xaa);
}

// The elements at even, or odd, places of a followed by b.
TFK_INLINE __m256 in_order(__m256 a) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8));
}
TFK_INLINE VecF even_of(VecF a, VecF b) { return {in_order(_mm256_shuffle_ps(a.v, b.v, 0x88))}; }
TFK_INLINE VecF odd_of(VecF a, VecF b) { return {in_order(_mm256_shuffle_ps(a.v, b.v, 0xdd))}; }
// The first and the second half of the row whose even and odd elements are given apart.
TFK_INLINE VecF first_of(VecF even, VecF odd) {
  return {_mm256_unpacklo_ps(in_order(even.v), in_order(odd.v))};
}
TFK_INLINE VecF second_of(VecF even, VecF odd) {
  return {_mm256_unpackhi_ps(in_order(even.v), in_order(odd.v))};
}

TFK_INLINE Mask<float> even_nonzero(Words a) {
  const __m256i even = _mm256_slli_epi32(a, 16);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi16(even, _mm256_setzero_si256()))};
}
TFK_INLINE Mask<float> odd_nonzero(Words a) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi16(a, _mm256_setzero_si256()))};
}
TFK_INLINE Mask<float> even_first(First lanes) { return first<float>({(lanes.count + 1) / 2}); }
TFK_INLINE Mask<float> odd_first(First lanes) { return first<float>({lanes.count / 2}); }

}  // namespace transformer_kernels::cpu::TFK_ISA
