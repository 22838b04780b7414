// SPDX-License-Identifier: MIT
// Activation functions. Each is a struct with
//
//   value(precision, x)                  f(x)
//   value_and_slope(precision, x)        f(x) and f'(x); common terms are computed once
//
// for x a float, a double, a vector of core/cpu/simd.h, or a CUDA thread's float or double. Kernels
// of the pointwise family and the epilogues of matrix products use the same structs.
//
// Where x is NaN, f(x) and f'(x) are NaN. A finite x of any size gives the limit of the formula:
// far from 0, f(x) is x or 0 and f'(x) is 1 or 0. At infinity both are the results of PyTorch's
// formula in float64: f(inf) = inf, f(-inf) = NaN (0 times infinity), f'(+-inf) = NaN; those of
// relu and relu_squared are their limits.
#pragma once

#if defined(__CUDACC__)
#include "core/cuda/math.cuh"
#else
#include "core/math/scalar.h"
#endif

namespace transformer_kernels::math {

template <class V>
struct ValueAndSlope {
  V value;
  V slope;
};

template <class V>
TFK_INLINE V constant(double value) {
  if constexpr (std::is_floating_point_v<V>) {
    return static_cast<V>(value);
  } else {
    return V::of(value);
  }
}

// first + second x + third x^2 + ...
template <class V>
TFK_INLINE V polynomial(V, double last) {
  return constant<V>(last);
}
template <class V, class... Rest>
TFK_INLINE V polynomial(V x, double first, Rest... rest) {
  return fma(polynomial(x, rest...), x, constant<V>(first));
}

template <class V>
struct Sigmoid {
  V value;       // 1 / (1 + exp(-x))
  V complement;  // 1 - value, as exact as it
};

template <class Precision, class V>
TFK_INLINE Sigmoid<V> sigmoid(Precision precision, V x) {
  const V power = exp(precision, constant<V>(0) - abs(x));
  const V large = reciprocal(constant<V>(1) + power);
  const V small = power * large;
  return {select(is_negative(x), small, large), select(is_negative(x), large, small)};
}

#if defined(__CUDACC__)
// Without a choice between the halves: 1 + exp(-x) may be infinite, where the value is 0.
__device__ __forceinline__ Sigmoid<float> sigmoid(Fast precision, float x) {
  constexpr float kFinite = 0x1p127f;  // times 0 it is 0, where infinity is not
  const float power = exp(precision, -x);
  const float value = reciprocal(1.0f + power);
  return {value, min(kFinite, power) * value};
}
#endif

// The standard normal distribution below -|x|: 2^(p(|x|) |x| - 1), p a polynomial. Its coefficients
// have the least maximal error of the result, absolute for small |x| and relative for large ones:
//
//   Accurate  2^-27, relative 2^-18 down to x = -6
//   Fast      2^-20, relative 2^-13 down to x = -5.5
//
// Beyond, the exponent falls without end, and the result is 0 from 12 or 14 on.
template <class V>
TFK_INLINE V normal_tail_exponent(Accurate, V magnitude) {
  const V p = polynomial(magnitude, -0x1.26aecep+0, -0x1.d63c58p-2, -0x1.adc59cp-5, 0x1.c98106p-8,
                         -0x1.fce574p-16, -0x1.14885cp-12, 0x1.2b82d6p-14, -0x1.50669cp-17,
                         0x1.9a1d6ep-21, -0x1.ab10fep-26);
  return fma(p, magnitude, constant<V>(-1));
}
template <class V>
TFK_INLINE V normal_tail_exponent(Fast, V magnitude) {
  const V p = polynomial(magnitude, -0x1.26b302p+0, -0x1.d5bbdcp-2, -0x1.b799a4p-5, 0x1.118a9ap-7,
                         -0x1.d0e096p-11, 0x1.d2f34ep-15, -0x1.980462p-20);
  return fma(p, magnitude, constant<V>(-1));
}

// The standard normal distribution, (1 + erf(x / sqrt(2))) / 2, of float. That of double has an
// overload for each number type.
template <class Precision, class V>
TFK_INLINE V normal_cdf(Precision precision, V x) {
  const V tail = exp2(precision, normal_tail_exponent(precision, abs(x)));
  return select(is_negative(x), tail, constant<V>(1) - tail);
}

// exp(-x^2 / 2) / sqrt(2 pi)
template <class Precision, class V>
TFK_INLINE V normal_density(Precision precision, V x) {
  constexpr double kMinusHalfLog2E = -0.72134752044448170;
  constexpr double kLog2OfFactor = -1.3257480647361593;
  return exp2(precision, fma(x * x, constant<V>(kMinusHalfLog2E), constant<V>(kLog2OfFactor)));
}

// x Phi(x), Phi the standard normal distribution (Hendrycks and Gimpel 2016, arXiv:1606.08415).
struct Gelu {
  template <class Precision, class V>
  TFK_INLINE static V value(Precision precision, V x) {
    return x * normal_cdf(precision, x);
  }
  template <class Precision, class V>
  TFK_INLINE static ValueAndSlope<V> value_and_slope(Precision precision, V x) {
    const V cdf = normal_cdf(precision, x);
    return {x * cdf, fma(x, normal_density(precision, x), cdf)};
  }
};

// x sigmoid(z(x)), where Logit has z and its derivative.
template <class Logit>
struct SelfGated {
  template <class Precision, class V>
  TFK_INLINE static V value(Precision precision, V x) {
    return x * sigmoid(precision, Logit::z(x)).value;
  }
  template <class Precision, class V>
  TFK_INLINE static ValueAndSlope<V> value_and_slope(Precision precision, V x) {
    const Sigmoid<V> gate = sigmoid(precision, Logit::z(x));
    const V value = x * gate.value;
    return {value, fma(value * gate.complement, Logit::slope(x), gate.value)};
  }
};

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, and (1 + tanh(u)) / 2 is sigmoid(2 u).
struct TanhLogit {
  static constexpr double kLinear = 1.5957691216057308;  // 2 sqrt(2 / pi)
  static constexpr double kCubic = kLinear * 0.044715;

  template <class V>
  TFK_INLINE static V z(V x) {
    return x * fma(x * x, constant<V>(kCubic), constant<V>(kLinear));
  }
  // That of |x| = 100 beyond, where the sigmoid is 0 or 1: the square of x may be infinite.
  template <class V>
  TFK_INLINE static V slope(V x) {
    const V square = min(constant<V>(1e4), x * x);
    return fma(square, constant<V>(3 * kCubic), constant<V>(kLinear));
  }
};
struct GeluTanh : SelfGated<TanhLogit> {};

// x sigmoid(x), also called swish.
struct SiluLogit {
  template <class V>
  TFK_INLINE static V z(V x) {
    return x;
  }
  template <class V>
  TFK_INLINE static V slope(V) {
    return constant<V>(1);
  }
};
struct Silu : SelfGated<SiluLogit> {};

// x sigmoid(1.702 x).
struct QuickGeluLogit {
  static constexpr double kFactor = 1.702;

  template <class V>
  TFK_INLINE static V z(V x) {
    return x * constant<V>(kFactor);
  }
  template <class V>
  TFK_INLINE static V slope(V) {
    return constant<V>(kFactor);
  }
};
struct QuickGelu : SelfGated<QuickGeluLogit> {};

// The slope at 0 is 0. Where x is NaN it is 1: the gradient passes, as in PyTorch.
struct Relu {
  template <class Precision, class V>
  TFK_INLINE static V value(Precision, V x) {
    return max(constant<V>(0), x);
  }
  template <class Precision, class V>
  TFK_INLINE static ValueAndSlope<V> value_and_slope(Precision precision, V x) {
    const V y = value(precision, x);
    return {y, select(equal(y, constant<V>(0)), constant<V>(0), constant<V>(1))};
  }
};

// max(x, 0)^2 (So et al. 2021, arXiv:2109.08668).
struct ReluSquared {
  template <class Precision, class V>
  TFK_INLINE static V value(Precision precision, V x) {
    const V y = Relu::value(precision, x);
    return y * y;
  }
  template <class Precision, class V>
  TFK_INLINE static ValueAndSlope<V> value_and_slope(Precision precision, V x) {
    const V y = Relu::value(precision, x);
    return {y * y, y + y};
  }
};

}  // namespace transformer_kernels::math
