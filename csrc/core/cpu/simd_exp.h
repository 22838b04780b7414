// SPDX-License-Identifier: MIT
// exp, written once for all instruction sets.
#pragma once

#include <cmath>

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2; within 2 ulp, NaN kept, for x up to
// 88 (beyond that, inf). ln 2 comes in two parts, the first short enough that n times it is exact.
// The polynomial of (exp(r) - 1 - r) / r^2 has the least maximal error among those of degree 4.
TFK_INLINE Vec<float> exp(Vec<float> x) {
  using V = Vec<float>;
  x = max(V::of(kExpLowest), x);
  const V n = round(x * V::of(1.44269504f));
  V r = fma(n, V::of(-0x1.62ep-1f), x);
  r = fma(n, V::of(-0x1.0bfbe8p-15f), r);
  V q = fma(V::of(0x1.6a2256p-10f), r, V::of(0x1.123b02p-7f));
  q = fma(q, r, V::of(0x1.5558f8p-5f));
  q = fma(q, r, V::of(0x1.555490p-3f));
  q = fma(q, r, V::of(0x1.fffffcp-2f));
  return times_power_of_two(fma(q, r * r, r) + V::of(1.0f), n);
}

TFK_INLINE Vec<double> exp(Vec<double> x) {
  double lane[Vec<double>::kLanes];
  store(lane, x, All{});
  for (double& value : lane) value = ::exp(value);
  return load(lane, All{});
}

}  // namespace transformer_kernels::cpu::TFK_ISA
