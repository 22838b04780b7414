// SPDX-License-Identifier: MIT
// The math functions that activation.h calls, for float and double in host code. Vectors have the
// same functions in core/cpu/simd_math.h, CUDA in core/cuda/math.cuh.
#pragma once

#include <cmath>
#include <concepts>

#include "core/math/precision.h"

namespace transformer_kernels::math {

template <std::floating_point A>
TFK_INLINE A fma(A a, A b, A c) {
  return std::fma(a, b, c);
}
// b where a is NaN.
template <std::floating_point A>
TFK_INLINE A max(A a, A b) {
  return a > b ? a : b;
}
template <std::floating_point A>
TFK_INLINE A min(A a, A b) {
  return a < b ? a : b;
}
template <std::floating_point A>
TFK_INLINE A abs(A a) {
  return std::abs(a);
}
template <std::floating_point A>
TFK_INLINE bool equal(A a, A b) {
  return a == b;
}
template <std::floating_point A>
TFK_INLINE bool is_negative(A a) {
  return std::signbit(a);
}
template <std::floating_point A>
TFK_INLINE A select(bool condition, A yes, A no) {
  return condition ? yes : no;
}

template <std::floating_point A>
TFK_INLINE A reciprocal(A a) {
  return 1 / a;
}

template <class Precision, std::floating_point A>
TFK_INLINE A exp(Precision, A x) {
  return std::exp(x);
}
template <class Precision, std::floating_point A>
TFK_INLINE A exp2(Precision, A x) {
  return std::exp2(x);
}
TFK_INLINE double normal_cdf(Accurate, double x) {
  return 0.5 * std::erfc(x * -0.70710678118654752);
}

}  // namespace transformer_kernels::math
