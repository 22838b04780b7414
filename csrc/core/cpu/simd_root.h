// SPDX-License-Identifier: MIT
// sqrt(v) of Vec, lane by lane, rounded as IEEE 754 says. For sources that are compiled once per
// instruction set.
#pragma once

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

#if TFK_ISA_LEVEL >= 2

TFK_INLINE VecF sqrt(VecF a) { return {_mm512_sqrt_ps(a.v)}; }
TFK_INLINE VecD sqrt(VecD a) { return {_mm512_sqrt_pd(a.v)}; }

#elif TFK_ISA_LEVEL == 1

TFK_INLINE VecF sqrt(VecF a) { return {_mm256_sqrt_ps(a.v)}; }
TFK_INLINE VecD sqrt(VecD a) { return {_mm256_sqrt_pd(a.v)}; }

#elif defined(TFK_ISA_NEON)

TFK_INLINE VecF sqrt(VecF a) { return {vsqrtq_f32(a.v)}; }
TFK_INLINE VecD sqrt(VecD a) { return {vsqrtq_f64(a.v)}; }

#else

TFK_INLINE float square_root(float a) { return __builtin_sqrtf(a); }
TFK_INLINE double square_root(double a) { return __builtin_sqrt(a); }
template <class A>
TFK_INLINE Vec<A> sqrt(Vec<A> a) {
  return Vec<A>::make([&](int i) { return square_root(a.lane[i]); });
}

#endif

}  // namespace transformer_kernels::cpu::TFK_ISA
