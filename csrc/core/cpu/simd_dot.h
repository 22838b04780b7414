// SPDX-License-Identifier: MIT
// Pairs of bfloat16, which AVX512-BF16 multiplies and sums up in float: what products of matrices
// are made of. For instruction sets that have it.
#pragma once

#include "core/cpu/simd.h"

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

TFK_INLINE VecP load(const BFloat16Pair* p, All) { return {_mm512_loadu_si512(p)}; }
TFK_INLINE void store(BFloat16Pair* p, VecP a, All) { _mm512_storeu_si512(p, a.v); }

// c + a.first * b.first + a.second * b.second, lane by lane.
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

}  // namespace transformer_kernels::cpu::TFK_ISA
