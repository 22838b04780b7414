// SPDX-License-Identifier: MIT
// Several vectors that take each operation together. In a long chain of operations each one waits
// for the one before, and a processor's scheduler looks too few instructions ahead to find those of
// the next vector by itself.
//
// Two<V> is a vector made of two V, each of which may be a Two itself. Twice<Lanes> stands for all
// its lanes where load, store, load_wide and store_wide take All{} of a single vector. Two has the
// operations that core/math needs. It is not an array, because compilers keep its members in
// registers.
#pragma once

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

template <class Lanes>
struct Twice {};

template <class V>
struct Two {
  static constexpr int kLanes = 2 * V::kLanes;
  V a;
  V b;
  template <class A>
  TFK_INLINE static Two of(A value) {
    return {V::of(value), V::of(value)};
  }
};
template <class M>
struct TwoMasks {
  M a;
  M b;
};

// How many vectors of float the registers hold beside constants. An emulated vector is several.
#ifdef TFK_EMULATE_AVX512
inline constexpr int kRegisterVectors = 1;
#else
inline constexpr int kRegisterVectors = kVectorRegisters / 8;
#endif

// The group of vectors in which rows of T are processed: its lane selector and its number of lanes.
// A vector of double stays alone, because its math functions are calls.
template <class T>
struct GroupOf {
  static constexpr int kVectors =
      kRegisterVectors == 1 || sizeof(T) == 8 ? 1 : kRegisterVectors / (InOrder<T> ? 1 : 2);
  static constexpr int kLanes = kVectors * vec_t<T>::kLanes;
  static constexpr auto lanes() {
    if constexpr (kVectors == 4) {
      return Twice<Twice<All>>{};
    } else if constexpr (kVectors == 2) {
      return Twice<All>{};
    } else {
      return All{};
    }
  }
};

// The lanes of one store of T: AVX512-BF16 rounds two vectors to a register of bfloat16, and one
// branch then tests both for subnormal numbers.
template <class T>
constexpr auto stored_lanes() {
  if constexpr (TFK_ISA_LEVEL >= 3 && __is_same(T, BFloat16)) {
    return Twice<All>{};
  } else {
    return All{};
  }
}

template <class V>
TFK_INLINE Two<V> operator+(Two<V> x, Two<V> y) {
  return {x.a + y.a, x.b + y.b};
}
template <class V>
TFK_INLINE Two<V> operator-(Two<V> x, Two<V> y) {
  return {x.a - y.a, x.b - y.b};
}
template <class V>
TFK_INLINE Two<V> operator*(Two<V> x, Two<V> y) {
  return {x.a * y.a, x.b * y.b};
}
template <class V>
TFK_INLINE Two<V> fma(Two<V> x, Two<V> y, Two<V> z) {
  return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)};
}
template <class V>
TFK_INLINE Two<V> max(Two<V> x, Two<V> y) {
  return {max(x.a, y.a), max(x.b, y.b)};
}
template <class V>
TFK_INLINE Two<V> min(Two<V> x, Two<V> y) {
  return {min(x.a, y.a), min(x.b, y.b)};
}
template <class V>
TFK_INLINE Two<V> abs(Two<V> x) {
  return {abs(x.a), abs(x.b)};
}
template <class V>
TFK_INLINE Two<V> reciprocal(Two<V> x) {
  return {reciprocal(x.a), reciprocal(x.b)};
}
template <class V>
TFK_INLINE Two<V> round_product(Two<V> x, Two<V> y) {
  return {round_product(x.a, y.a), round_product(x.b, y.b)};
}
template <class V>
TFK_INLINE Two<V> whole(Two<V> n) {
  return {whole(n.a), whole(n.b)};
}
template <class V>
TFK_INLINE Two<V> times_power_of_two(Two<V> x, Two<V> n) {
  return {times_power_of_two(x.a, n.a), times_power_of_two(x.b, n.b)};
}
template <class V>
TFK_INLINE Two<V> swap_pairs(Two<V> x) {
  return {swap_pairs(x.a), swap_pairs(x.b)};
}

template <class V>
TFK_INLINE auto equal(Two<V> x, Two<V> y) {
  return TwoMasks<decltype(equal(x.a, y.a))>{equal(x.a, y.a), equal(x.b, y.b)};
}
template <class V>
TFK_INLINE auto is_negative(Two<V> x) {
  return TwoMasks<decltype(is_negative(x.a))>{is_negative(x.a), is_negative(x.b)};
}
template <class M, class V>
TFK_INLINE Two<V> select(TwoMasks<M> mask, Two<V> yes, Two<V> no) {
  return {select(mask.a, yes.a, no.a), select(mask.b, yes.b, no.b)};
}

template <class T, class Lanes>
TFK_INLINE auto load(const T* p, Twice<Lanes>) {
  using V = decltype(load(p, Lanes{}));
  return Two<V>{load(p, Lanes{}), load(p + V::kLanes, Lanes{})};
}
template <class T, class Lanes>
TFK_INLINE auto load_wide(const accumulate_t<T>* p, Twice<Lanes>) {
  using V = decltype(load_wide<T>(p, Lanes{}));
  return Two<V>{load_wide<T>(p, Lanes{}), load_wide<T>(p + V::kLanes, Lanes{})};
}
template <class T, class Element, class Lanes>
TFK_INLINE auto load_as(const Element* p, Twice<Lanes>) {
  using V = decltype(load_as<T>(p, Lanes{}));
  return Two<V>{load_as<T>(p, Lanes{}), load_as<T>(p + V::kLanes, Lanes{})};
}
#if TFK_ISA_LEVEL >= 3
// Two vectors are rounded, tested for subnormal numbers and stored as one.
TFK_INLINE void store(BFloat16* p, Two<VecF> x, Twice<All>) {
  if (__builtin_expect((subnormal_lanes(x.a) | subnormal_lanes(x.b)) != 0, false)) {
    store(p, x.a, All{});
    store(p + VecF::kLanes, x.b, All{});
  } else {
    _mm512_storeu_si512(p, __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(x.b.v, x.a.v)));
  }
}
#endif
template <class T, class V, class Lanes>
TFK_INLINE void store(T* p, Two<V> x, Twice<Lanes>) {
  store(p, x.a, Lanes{});
  store(p + V::kLanes, x.b, Lanes{});
}
template <class T, class V, class Lanes>
TFK_INLINE void store_wide(accumulate_t<T>* p, Two<V> x, Twice<Lanes>) {
  store_wide<T>(p, x.a, Lanes{});
  store_wide<T>(p + V::kLanes, x.b, Lanes{});
}
#if TFK_ISA_LEVEL >= 3
TFK_INLINE void stream(BFloat16* p, Two<VecF> x) {
  if (__builtin_expect((subnormal_lanes(x.a) | subnormal_lanes(x.b)) != 0, false)) {
    stream(p, x.a);
    stream(p + VecF::kLanes, x.b);
  } else {
    // In halves, because rows begin at multiples of one vector's bytes.
    const __m512i words = __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(x.b.v, x.a.v));
    auto* const to = reinterpret_cast<__m256i*>(p);
    _mm256_stream_si256(to, _mm512_castsi512_si256(words));
    _mm256_stream_si256(to + 1, _mm512_extracti64x4_epi64(words, 1));
  }
}
#endif
template <class T, class V>
TFK_INLINE void stream(T* p, Two<V> x) {
  stream(p, x.a);
  stream(p + V::kLanes, x.b);
}

}  // namespace transformer_kernels::cpu::TFK_ISA
