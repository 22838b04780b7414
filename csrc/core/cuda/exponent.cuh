// SPDX-License-Identifier: MIT
// Powers and logarithms for rows of T. Exponents are kept in units of kNatural, so that a power has
// the precision, and the cost, that T needs.
#pragma once

#include "core/cuda/ptx.cuh"
#include "core/types.h"

namespace transformer_kernels::cuda {

// 16-bit types: powers of 2, one instruction each way.
template <class T>
struct Exponent {
  static constexpr float kPerNatural = 1.4426950408889634f;
  static constexpr float kNatural = 0.6931471805599453f;

  static __device__ __forceinline__ float power(float v) { return exp2_approximate(v); }
  static __device__ __forceinline__ float log(float v) { return __log2f(v); }
};

// A power of 2 would lose the bits that v / ln 2 rounds off: an error that grows with |v|.
template <>
struct Exponent<float> {
  static constexpr float kPerNatural = 1;
  static constexpr float kNatural = 1;

  static __device__ __forceinline__ float power(float v) { return expf(v); }
  static __device__ __forceinline__ float log(float v) { return logf(v); }
};

template <>
struct Exponent<double> {
  static constexpr double kPerNatural = 1;
  static constexpr double kNatural = 1;

  static __device__ __forceinline__ double power(double v) { return exp(v); }
  static __device__ __forceinline__ double log(double v) { return ::log(v); }
};

}  // namespace transformer_kernels::cuda
