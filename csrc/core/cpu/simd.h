// SPDX-License-Identifier: MIT
// Vectors for kernels: vec_t<T> is the vector type that rows of T are computed in. It has lanes of
// accumulate_t<T>; loads widen to it, and stores round back to nearest even. For sources that are
// compiled once per instruction set (*_isa.cpp): all names live in the set's own namespace, so that
// the linker cannot mix the sets.
//
// vec_t<T> is Vec<accumulate_t<T>>, with elements in order, or a Pair, with elements in an order of
// its own (simd_pair.h). Arrays of elements are always in order. A row that only kernels see can be
// kept wide, in the order of the lanes, which load_wide() and store_wide() need not rearrange.
//
//   vec_t<T>::of(a)                      all lanes a
//   + - *  fma(a, b, c)  abs  exp        lane by lane
//   max(a, b)  min(a, b)                 the same; b where a or b is NaN
//   /  tanh                              the same, of Vec alone
//   n = round_product(a, b)              the nearest whole number, in a form of the set's own, for
//   whole(n)  times_power_of_two(v, n)   the number itself and v * 2^n, n in [-127, 127]
//   reduce_add(v)  reduce_max(v)         over the lanes
//   swap_pairs(v)                        elements 1, 0, 3, 2, ...
//   load(p, lanes)  store(p, v, lanes)   elements of T; lanes is All{} or First{n}; lanes beyond n
//                                        are 0 when loaded, and not stored
//   load_as<T>(p, lanes)                 vec_t<T> from elements of T or of accumulate_t<T>
//   load_wide<T>(p, lanes)  store_wide<T>(p, v, lanes)
//                                        of a wide row, which has room for wide_cols() columns
//   stream(p, v)                         store past the caches; p aligned to kLanes elements
//   transpose(rows)                      kLanes Vec become the columns of what they were
//   nonzero<T>(bytes, lanes)  equal(a, b)  is_negative(a)  first<T>(lanes)
//                                        masks for select(mask, yes, no); -0 is negative
//   keep<T>(v, lanes, otherwise)         v where lanes are, otherwise elsewhere
//
// kVectorRegisters says how many vectors the registers hold.
#pragma once

#include <cstdint>

#include "core/inline.h"
#include "core/types.h"

#ifndef TFK_ISA
#define TFK_ISA scalar
#define TFK_ISA_LEVEL 0
#endif

// Kernels become one loop each: TFK_INLINE functions always, all others where a TFK_FLATTEN
// function calls them, but for builds that check or count every access.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(TFK_COVERAGE)
#define TFK_FLATTEN
#else
#define TFK_FLATTEN [[gnu::flatten]]
#endif

namespace transformer_kernels::cpu::TFK_ISA {

struct All {};
struct First {
  std::int64_t count;  // fewer than kLanes
};
template <class Lanes>
concept OneVector = __is_same(Lanes, All) || __is_same(Lanes, First);

template <class A>
struct Vec;
template <class A>
struct Mask;

template <class T>
struct VecOf {
  using type = Vec<accumulate_t<T>>;
};
template <class T>
using vec_t = typename VecOf<T>::type;

// Elements that do not fill a vector of N, by way of memory: for types without masked instructions.
template <class T, int N>
struct Staged {
  T data[N] = {};

  TFK_INLINE static Staged from(const T* source, First lanes) {
    Staged staged;
    copy(staged.data, source, lanes.count);
    return staged;
  }
  TFK_INLINE void copy_to(T* target, First lanes) const { copy(target, data, lanes.count); }

 private:
  // Fewer than N elements, in blocks of decreasing powers of two.
  TFK_INLINE static void copy(T* to, const T* from, std::int64_t count) {
#pragma GCC unroll 8
    for (int block = N / 2; block > 0; block /= 2) {
      if ((count & block) == 0) continue;
      __builtin_memcpy(to, from, block * sizeof(T));
      to += block;
      from += block;
    }
  }
};

}  // namespace transformer_kernels::cpu::TFK_ISA

#if TFK_ISA_LEVEL >= 2
#include "core/cpu/simd_avx512.h"
#elif TFK_ISA_LEVEL == 1
#include "core/cpu/simd_avx2.h"
#elif defined(TFK_ISA_NEON)
#include "core/cpu/simd_neon.h"
#else
#include "core/cpu/simd_scalar.h"
#endif

#if TFK_ISA_LEVEL == 1 || TFK_ISA_LEVEL == 2
#include "core/cpu/simd_pair.h"
#endif

namespace transformer_kernels::cpu::TFK_ISA {

// Rows of T are computed in vectors with elements in order, not in pairs.
template <class T>
concept InOrder = __is_same(vec_t<T>, Vec<accumulate_t<T>>);

// Sets have a faster one where it matters.
template <class A, int kRows>
TFK_INLINE void transpose(Vec<A> (&rows)[kRows]) {
  static_assert(kRows == Vec<A>::kLanes);
  A square[kRows][kRows];
  for (int i = 0; i < kRows; ++i) store(square[i], rows[i], All{});
  for (int i = 0; i < kRows; ++i) {
    A column[kRows];
    for (int j = 0; j < kRows; ++j) column[j] = square[j][i];
    rows[i] = load(column, All{});
  }
}

template <InOrder T, class Element, OneVector Lanes>
TFK_INLINE vec_t<T> load_as(const Element* p, Lanes lanes) {
  return load(p, lanes);
}
template <InOrder T, OneVector Lanes>
TFK_INLINE vec_t<T> load_wide(const accumulate_t<T>* p, Lanes lanes) {
  return load(p, lanes);
}
template <InOrder T, OneVector Lanes>
TFK_INLINE void store_wide(accumulate_t<T>* p, vec_t<T> v, Lanes lanes) {
  store(p, v, lanes);
}

// v, with `otherwise` in the lanes that are not among `lanes`.
template <class T>
TFK_INLINE vec_t<T> keep(vec_t<T> v, All, vec_t<T>) {
  return v;
}
template <class T>
TFK_INLINE vec_t<T> keep(vec_t<T> v, First lanes, vec_t<T> otherwise) {
  return select(first<T>(lanes), v, otherwise);
}

}  // namespace transformer_kernels::cpu::TFK_ISA

#include "core/cpu/simd_exp.h"
#include "core/cpu/simd_math.h"
