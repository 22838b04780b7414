// SPDX-License-Identifier: MIT
// The math functions that core/math/activation.h calls, for a CUDA thread's float and double.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/ptx.cuh"
#include "core/math/precision.h"

namespace transformer_kernels::math {

TFK_INLINE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
TFK_INLINE double fma(double a, double b, double c) { return ::fma(a, b, c); }
TFK_INLINE float abs(float a) { return ::fabsf(a); }
TFK_INLINE double abs(double a) { return ::fabs(a); }

// b where a is NaN.
template <class A>
TFK_INLINE A max(A a, A b) {
  return a > b ? a : b;
}
template <class A>
TFK_INLINE A min(A a, A b) {
  return a < b ? a : b;
}
template <class A>
TFK_INLINE bool equal(A a, A b) {
  return a == b;
}
// -0 is not negative here: callers treat both zeros alike.
template <class A>
TFK_INLINE bool is_negative(A a) {
  return a < 0;
}
template <class A>
TFK_INLINE A select(bool condition, A yes, A no) {
  return condition ? yes : no;
}

TFK_INLINE float exp(Accurate, float x) { return ::expf(x); }
TFK_INLINE double exp(Accurate, double x) { return ::exp(x); }
TFK_INLINE float exp(Fast, float x) { return cuda::exp2_approximate(x * 1.44269504f); }

TFK_INLINE float exp2(Accurate, float x) { return ::exp2f(x); }
TFK_INLINE double exp2(Accurate, double x) { return ::exp2(x); }
TFK_INLINE float exp2(Fast, float x) { return cuda::exp2_approximate(x); }

// Exact to one unit; a division would be a call.
TFK_INLINE float reciprocal(float a) { return cuda::reciprocal_approximate(a); }
TFK_INLINE double reciprocal(double a) { return 1 / a; }

TFK_INLINE double normal_cdf(Accurate, double x) { return 0.5 * ::erfc(x * -0.70710678118654752); }

}  // namespace transformer_kernels::math
