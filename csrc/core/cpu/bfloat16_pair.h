// SPDX-License-Identifier: MIT
// Pairs of bfloat16, and their conversion from float. AVX512-BF16 and AMX multiply such pairs and
// add them up in float. For instruction sets that have AVX512-BF16.
#pragma once

#include "core/cpu/sums.h"

namespace transformer_kernels::cpu::TFK_ISA {

// Two elements that follow each other along the terms of a sum.
struct BFloat16Pair {
  BFloat16 first;
  BFloat16 second;
};

template <>
struct Vec<BFloat16Pair> {
  static constexpr int kLanes = 16;
  __m512i v;
  TFK_INLINE static Vec of(BFloat16Pair value) {
    return {_mm512_set1_epi32(__builtin_bit_cast(int, value))};
  }
};
using VecP = Vec<BFloat16Pair>;

template <>
struct SumOf<BFloat16Pair> {
  using Type = float;
};

TFK_INLINE VecP load(const BFloat16Pair* p, All) { return {_mm512_loadu_si512(p)}; }
TFK_INLINE void store(BFloat16Pair* p, VecP a, All) { _mm512_storeu_si512(p, a.v); }

// Both products of a pair are added; subnormal factors are 0.
TFK_INLINE VecF fma(VecP a, VecP b, VecF c) {
  return {
      _mm512_dpbf16_ps(c.v, __builtin_bit_cast(__m512bh, a.v), __builtin_bit_cast(__m512bh, b.v))};
}

// Elements of a, then of b, rounded.
TFK_INLINE VecP rounded(VecF a, VecF b) {
  return {__builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(b.v, a.v))};
}

// Element i of `first` and of `second` become pair i.
TFK_INLINE VecP paired(__m256i first, __m256i second) {
  const __m512i low = _mm512_cvtepu16_epi32(first);
  return {_mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16))};
}
TFK_INLINE VecP paired(const BFloat16* first, const BFloat16* second) {
  return paired(load_words(first, All{}), load_words(second, All{}));
}
TFK_INLINE VecP paired(VecF first, VecF second) {
  return paired(to_bfloat16(first), to_bfloat16(second));
}

// Rows of 16 pairs become columns.
TFK_INLINE void transpose(VecP (&rows)[16]) {
  VecF same[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) same[i] = {_mm512_castsi512_ps(rows[i].v)};
  transpose(same);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = {_mm512_castps_si512(same[i].v)};
}

// 2^x within 2^-18.5 of itself, for results that will be rounded to 16 bits, in few operations:
// 2^floor(x + 1/2) times a polynomial of the rest, which has the least maximal error among those of
// degree 4. The argument is x + 1/2; the scaling of x adds the 1/2 at no cost. -inf gives 0.
TFK_INLINE VecF short_exp2(VecF x_and_half) {
  const VecF rest{_mm512_reduce_ps(x_and_half.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  VecF q = fma(VecF::of(0x1.3997d6p-7f), rest, VecF::of(0x1.2d4856p-5f));
  q = fma(q, rest, VecF::of(0x1.5da57ep-3f));
  q = fma(q, rest, VecF::of(0x1.f5c9d2p-2f));
  q = fma(q, rest, VecF::of(0x1.6a0a24p-1f));
  return {_mm512_scalef_ps(q.v, x_and_half.v)};
}

}  // namespace transformer_kernels::cpu::TFK_ISA
