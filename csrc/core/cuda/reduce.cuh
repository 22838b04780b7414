// SPDX-License-Identifier: MIT
// Reductions from thread to warp to the threads that share a row. Every thread gets the result, and
// lane and warp numbers fix the order of additions.
#pragma once

#include <cstdint>

#include "core/cuda/ptx.cuh"

namespace transformer_kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarp = 32;

struct Add {
  template <class V>
  __device__ __forceinline__ V operator()(V a, V b) const {
    return a + b;
  }
};

struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ double operator()(double a, double b) const { return fmax(a, b); }
};

// Reduces over groups of kLanes neighbouring lanes.
template <class Op, int kLanes = kWarp, class V>
__device__ __forceinline__ V reduce_lanes(V value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = Op()(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// a * b that the compiler does not fuse with an addition.
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }

// 1 / count for a whole number, 1 for 0; correct to the last bit or the one before. The division
// operator would bring a call, and with it spills, for the sake of operands that never come here.
__device__ __forceinline__ double reciprocal(double count) { return count > 0 ? 1 / count : 1; }
__device__ __forceinline__ float reciprocal(float count) {
  if (!(count > 0)) return 1;
  const float guess = reciprocal_approximate(count);
  return fmaf(guess, fmaf(-count, guess, 1.0f), guess);
}

}  // namespace transformer_kernels::cuda
