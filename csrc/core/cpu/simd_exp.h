// SPDX-License-Identifier: MIT
// exp, written once for all instruction sets and vector types.
#pragma once

#include <cmath>

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2; within 2 ulp, NaN kept, for x up to
// 88 (beyond that, inf). ln 2 comes in two parts, the first short enough that n times it is exact.
// The polynomial of (exp(r) - 1 - r) / r^2 has the least maximal error among those of degree 4.
template <class V>
TFK_INLINE V exp(V x) {
  x = max(V::of(kExpLowest), x);
  const V power = round_product(x, V::of(1.44269504f));
  const V n = whole(power);
  V r = fma(n, V::of(-0x1.62ep-1f), x);
  r = fma(n, V::of(-0x1.0bfbe8p-15f), r);
  V q = fma(V::of(0x1.6a2256p-10f), r, V::of(0x1.123b02p-7f));
  q = fma(q, r, V::of(0x1.5558f8p-5f));
  q = fma(q, r, V::of(0x1.555490p-3f));
  q = fma(q, r, V::of(0x1.fffffcp-2f));
  return times_power_of_two(fma(q, r * r, r) + V::of(1.0f), power);
}

// 2^x = 2^n 2^r, n = round(x), |r| <= 1/2; within 2 ulp, NaN kept, for x up to 127 (beyond that,
// inf). The polynomial is 1 at 0 and has the least maximal error among those of degree 5.
template <class V>
TFK_INLINE V exp2(V x) {
  x = max(V::of(kExpLowest * 1.44269504f), x);
  const V power = round_product(x, V::of(1.0f));
  const V r = x - whole(power);
  V q = fma(V::of(0x1.5bba14p-10f), r, V::of(0x1.3cea88p-7f));
  q = fma(q, r, V::of(0x1.c6b752p-5f));
  q = fma(q, r, V::of(0x1.ebf9bcp-3f));
  q = fma(q, r, V::of(0x1.62e42ap-1f));
  return times_power_of_two(fma(q, r, V::of(1.0f)), power);
}

// tanh(x) = u / (u + 2), u = exp(2 x) - 1 = 2^n (exp(r) - 1) + (2^n - 1): as exact near 0 as
// elsewhere, within 3 ulp; NaN kept. The polynomial is that of exp(). Beyond 20, tanh is 1.
TFK_INLINE Vec<float> tanh(Vec<float> x) {
  using V = Vec<float>;
  const V zero = V::of(0.0f);
  const V most = V::of(-40.0f);
  const V twice = max(most, zero - max(most, zero - (x + x)));
  const V power = round_product(twice, V::of(1.44269504f));
  const V n = whole(power);
  V r = fma(n, V::of(-0x1.62ep-1f), twice);
  r = fma(n, V::of(-0x1.0bfbe8p-15f), r);
  V q = fma(V::of(0x1.6a2256p-10f), r, V::of(0x1.123b02p-7f));
  q = fma(q, r, V::of(0x1.5558f8p-5f));
  q = fma(q, r, V::of(0x1.555490p-3f));
  q = fma(q, r, V::of(0x1.fffffcp-2f));
  const V one = V::of(1.0f);
  const V scale = times_power_of_two(one, power);
  const V u = fma(fma(q, r * r, r), scale, scale - one);
  return u / (u + V::of(2.0f));
}

TFK_INLINE Vec<double> tanh(Vec<double> x) {
  double lane[Vec<double>::kLanes];
  store(lane, x, All{});
  for (double& value : lane) value = ::tanh(value);
  return load(lane, All{});
}

TFK_INLINE Vec<double> exp(Vec<double> x) {
  double lane[Vec<double>::kLanes];
  store(lane, x, All{});
  for (double& value : lane) value = ::exp(value);
  return load(lane, All{});
}

TFK_INLINE Vec<double> exp2(Vec<double> x) {
  double lane[Vec<double>::kLanes];
  store(lane, x, All{});
  for (double& value : lane) value = ::exp2(value);
  return load(lane, All{});
}

// exp(x) = 2^n 2^-g, n - g = x / ln 2, for results that will be rounded to 16 bits: with the range
// and the NaN of exp(), in fewer operations. The polynomial of 2^-g is 1 at 0 and has the least
// maximal error for |g| <= 1/2 among those of degree 4, 2^-18.4: less than a hundredth of what
// rounding to Half may do.
template <class V>
TFK_INLINE V short_exp(V x) {
  x = max(V::of(kExpLowest), x);
  const V power = round_product(x, V::of(1.44269504f));
  const V g = fma(x, V::of(-1.44269504f), whole(power));
  V q = fma(V::of(0x1.3a02ccp-7f), g, V::of(-0x1.c9fc46p-5f));
  q = fma(q, g, V::of(0x1.ec0378p-3f));
  q = fma(q, g, V::of(-0x1.62e12cp-1f));
  return times_power_of_two(fma(q, g, V::of(1.0f)), power);
}

// exp, as exact as results need it that are rounded to T and not subtracted from anything.
template <class T>
TFK_INLINE vec_t<T> exp_for(vec_t<T> x) {
  if constexpr (sizeof(T) == 2) {
    return short_exp(x);
  } else {
    return exp(x);
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
