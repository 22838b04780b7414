// SPDX-License-Identifier: MIT
// The math functions of vectors that core/math calls, by precision.
#pragma once

#include <cmath>

#include "core/cpu/simd.h"
#include "core/math/precision.h"

namespace transformer_kernels::cpu::TFK_ISA {

// 1 / a, for numbers that are neither huge nor tiny. Instruction sets have a faster one where it
// matters.
template <class A>
TFK_INLINE Vec<A> reciprocal(Vec<A> a) {
  return Vec<A>::of(1) / a;
}
#if TFK_ISA_LEVEL == 1 || TFK_ISA_LEVEL == 2
TFK_INLINE Pair reciprocal(Pair a) { return {reciprocal(a.even), reciprocal(a.odd)}; }
#endif

// For x up to 88, and the next for x up to 127.
template <class V>
TFK_INLINE V exp(math::Accurate, V x) {
  return exp(x);
}
template <class V>
TFK_INLINE V exp(math::Fast, V x) {
  return short_exp(x);
}
template <class V>
TFK_INLINE V exp2(math::Accurate, V x) {
  return exp2(x);
}
// The polynomial is that of short_exp().
template <class V>
TFK_INLINE V exp2(math::Fast, V x) {
  x = max(V::of(kExpLowest * 1.44269504f), x);
  const V power = round_product(x, V::of(1.0f));
  const V r = x - whole(power);
  V q = fma(V::of(0x1.3a02ccp-7f), r, V::of(0x1.c9fc46p-5f));
  q = fma(q, r, V::of(0x1.ec0378p-3f));
  q = fma(q, r, V::of(0x1.62e12cp-1f));
  return times_power_of_two(fma(q, r, V::of(1.0f)), power);
}

TFK_INLINE Vec<double> normal_cdf(math::Accurate, Vec<double> x) {
  double lane[Vec<double>::kLanes];
  store(lane, x, All{});
  for (double& value : lane) value = 0.5 * ::erfc(value * -0.70710678118654752);
  return load(lane, All{});
}

}  // namespace transformer_kernels::cpu::TFK_ISA
