// SPDX-License-Identifier: MIT
// Rows of bfloat16 for processors without bfloat16 instructions. A register full of them is taken
// as two vectors, the elements at even and at odd places: a shift and a mask widen it, a shift and
// a blend narrow it. Elements in order would have to cross from one half of a register to the
// other.
#pragma once

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

struct Pair {
  static constexpr int kLanes = 2 * VecF::kLanes;
  VecF even;
  VecF odd;
  TFK_INLINE static Pair of(float value) { return {VecF::of(value), VecF::of(value)}; }
};
struct PairMask {
  Mask<float> even;
  Mask<float> odd;
};

template <>
struct VecOf<BFloat16> {
  using type = Pair;
};
// Rows of T are computed in pairs.
template <class T>
concept Paired = __is_same(vec_t<T>, Pair);

TFK_INLINE Pair operator+(Pair a, Pair b) { return {a.even + b.even, a.odd + b.odd}; }
TFK_INLINE Pair operator-(Pair a, Pair b) { return {a.even - b.even, a.odd - b.odd}; }
TFK_INLINE Pair operator*(Pair a, Pair b) { return {a.even * b.even, a.odd * b.odd}; }
TFK_INLINE Pair fma(Pair a, Pair b, Pair c) {
  return {fma(a.even, b.even, c.even), fma(a.odd, b.odd, c.odd)};
}
TFK_INLINE Pair max(Pair a, Pair b) { return {max(a.even, b.even), max(a.odd, b.odd)}; }
TFK_INLINE Pair min(Pair a, Pair b) { return {min(a.even, b.even), min(a.odd, b.odd)}; }
TFK_INLINE Pair abs(Pair a) { return {abs(a.even), abs(a.odd)}; }
TFK_INLINE Pair round_product(Pair a, Pair b) {
  return {round_product(a.even, b.even), round_product(a.odd, b.odd)};
}
TFK_INLINE Pair whole(Pair n) { return {whole(n.even), whole(n.odd)}; }
TFK_INLINE Pair times_power_of_two(Pair a, Pair n) {
  return {times_power_of_two(a.even, n.even), times_power_of_two(a.odd, n.odd)};
}
TFK_INLINE float reduce_add(Pair a) { return reduce_add(a.even + a.odd); }
TFK_INLINE float reduce_max(Pair a) { return reduce_max(max(a.even, a.odd)); }
TFK_INLINE Pair swap_pairs(Pair a) { return {a.odd, a.even}; }

template <Paired T>
TFK_INLINE PairMask first(First lanes) {
  return {even_first(lanes), odd_first(lanes)};
}
template <Paired T>
TFK_INLINE PairMask nonzero(const std::uint8_t* bytes, All) {
  const Words words = words_of_bytes(bytes);
  return {even_nonzero(words), odd_nonzero(words)};
}
template <Paired T>
TFK_INLINE PairMask nonzero(const std::uint8_t* bytes, First lanes) {
  return nonzero<T>(Staged<std::uint8_t, Pair::kLanes>::from(bytes, lanes).data, All{});
}
TFK_INLINE PairMask equal(Pair a, Pair b) { return {equal(a.even, b.even), equal(a.odd, b.odd)}; }
TFK_INLINE PairMask is_negative(Pair a) { return {is_negative(a.even), is_negative(a.odd)}; }
TFK_INLINE Pair select(PairMask mask, Pair yes, Pair no) {
  return {select(mask.even, yes.even, no.even), select(mask.odd, yes.odd, no.odd)};
}

TFK_INLINE Pair load(const BFloat16* p, All) {
  const Words words = load_words(p);
  return {even_bfloat16(words), odd_bfloat16(words)};
}
TFK_INLINE void store(BFloat16* p, Pair a, All) { store_words(p, to_bfloat16(a.even, a.odd)); }
TFK_INLINE void stream(BFloat16* p, Pair a) { stream_words(p, to_bfloat16(a.even, a.odd)); }
TFK_INLINE void store(float* p, Pair a, All) {
  store(p, first_of(a.even, a.odd), All{});
  store(p + VecF::kLanes, second_of(a.even, a.odd), All{});
}
template <class Element>
TFK_INLINE void store(Element* p, Pair a, First lanes) {
  Staged<Element, Pair::kLanes> staged;
  store(staged.data, a, All{});
  staged.copy_to(p, lanes);
}
TFK_INLINE Pair load(const BFloat16* p, First lanes) {
  return load(Staged<BFloat16, Pair::kLanes>::from(p, lanes).data, All{});
}

template <Paired T, OneVector Lanes>
TFK_INLINE Pair load_as(const T* p, Lanes lanes) {
  return load(p, lanes);
}
template <Paired T>
TFK_INLINE Pair load_as(const float* p, All) {
  const VecF a = load(p, All{});
  const VecF b = load(p + VecF::kLanes, All{});
  return {even_of(a, b), odd_of(a, b)};
}
template <Paired T>
TFK_INLINE Pair load_as(const float* p, First lanes) {
  return load_as<T>(Staged<float, Pair::kLanes>::from(p, lanes).data, All{});
}

// Wide rows are whole pairs.
template <Paired T, OneVector Lanes>
TFK_INLINE Pair load_wide(const float* p, Lanes) {
  return {load(p, All{}), load(p + VecF::kLanes, All{})};
}
template <Paired T, OneVector Lanes>
TFK_INLINE void store_wide(float* p, Pair a, Lanes) {
  store(p, a.even, All{});
  store(p + VecF::kLanes, a.odd, All{});
}

}  // namespace transformer_kernels::cpu::TFK_ISA
