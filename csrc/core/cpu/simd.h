// SPDX-License-Identifier: MIT
// Vectors for kernels: Vec<float> and Vec<double>, loads that widen every storage type to them, and
// stores that round back to nearest even. For sources that are compiled once per instruction set
// (*_isa.cpp): all names live in the set's own namespace, so that the linker cannot mix the sets.
//
//   Vec<A>::of(a)                        all lanes a
//   + - *  fma(a, b, c)  max(a, b)  exp  lane by lane; max returns b where a is NaN
//   reduce_add(v)  reduce_max(v)         over the lanes
//   load(p, lanes)  store(p, v, lanes)   lanes is All{} or First{n}; lanes beyond n are 0, not
//   stored stream(p, v)                         store past the caches; p aligned to kLanes elements
//   nonzero<A>(bytes, lanes)  equal(a, b)  first<A>(lanes)  ->  Mask<A>, for select(mask, yes, no)
//   keep(v, lanes, otherwise)            v where lanes are, otherwise elsewhere
#pragma once

#include <cstdint>

#include "core/types.h"

#ifndef TFK_ISA
#define TFK_ISA scalar
#define TFK_ISA_LEVEL 0
#endif

// Kernels become one loop each: TFK_INLINE functions always, all others where a TFK_FLATTEN
// function calls them. Builds that check or count every access keep functions apart, since such
// loops would take minutes to compile.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(TFK_COVERAGE)
#define TFK_INLINE [[gnu::noinline]] inline
#define TFK_FLATTEN
#else
#define TFK_INLINE [[gnu::always_inline]] inline
#define TFK_FLATTEN [[gnu::flatten]]
#endif

namespace transformer_kernels::cpu::TFK_ISA {

struct All {};
struct First {
  std::int64_t count;  // fewer than kLanes
};

template <class A>
struct Vec;
template <class A>
struct Mask;

// Elements that do not fill a vector of N, by way of memory: for types without masked instructions.
template <class T, int N>
struct Staged {
  T data[N] = {};

  TFK_INLINE static Staged from(const T* source, First lanes) {
    Staged staged;
    for (int i = 0; i < N; ++i) {
      if (i < lanes.count) staged.data[i] = source[i];
    }
    return staged;
  }
  TFK_INLINE void copy_to(T* target, First lanes) const {
    for (int i = 0; i < N; ++i) {
      if (i < lanes.count) target[i] = data[i];
    }
  }
};

}  // namespace transformer_kernels::cpu::TFK_ISA

#if TFK_ISA_LEVEL >= 2
#include "core/cpu/simd_avx512.h"
#elif TFK_ISA_LEVEL == 1
#include "core/cpu/simd_avx2.h"
#else
#include "core/cpu/simd_scalar.h"
#endif

#include "core/cpu/simd_exp.h"

namespace transformer_kernels::cpu::TFK_ISA {

// v, with `otherwise` in the lanes that are not among `lanes`.
template <class A>
TFK_INLINE Vec<A> keep(Vec<A> v, All, Vec<A>) {
  return v;
}
template <class A>
TFK_INLINE Vec<A> keep(Vec<A> v, First lanes, Vec<A> otherwise) {
  return select(first<A>(lanes), v, otherwise);
}

}  // namespace transformer_kernels::cpu::TFK_ISA
