// SPDX-License-Identifier: MIT
// Weights of tokens on CUDA: the operations of weights.h, each rounded by itself, so that they have
// the same bits.
#pragma once

#include <cuda_runtime.h>

#include "decode/sampling/group.cuh"
#include "decode/sampling/weighing.h"

namespace transformer_kernels::cuda::sampling {

inline constexpr float kInfinity = Weighing::kInfinity;

__device__ __forceinline__ std::uint32_t key_of(float number) {
  return key_of_bits(__float_as_uint(number == 0 ? 0.0f : number));
}
__device__ __forceinline__ float number_of(std::uint32_t key) {
  return __uint_as_float(bits_of_key(key));
}

// log2 of the weight. kFinite: the largest logit and the scale are.
template <bool kFinite = false>
__device__ __forceinline__ float exponent(const Weighing& by, float z) {
  float below = __fmul_rn(__fsub_rn(z, by.top), by.scale);
  if constexpr (!kFinite) below = z == by.top ? 0.0f : below;
  return fmaxf(below, kLeastExponent);  // which is what NaN becomes
}

// 2^(40 + x)
__device__ __forceinline__ float units(float x) {
  constexpr float kWhole = 0x1.8p23f;  // numbers of this size are whole; the lowest bits have them
  const float n = __fadd_rn(x, kWhole);
  const float r = __fsub_rn(x, __fsub_rn(n, kWhole));
  constexpr PowerOfTwo kPower;
  float y = kPower.term[0];
#pragma unroll
  for (int i = 1; i < kPower.kTerms; ++i) y = __fadd_rn(__fmul_rn(y, r), kPower.term[i]);
  return __uint_as_float(__float_as_uint(y) + (__float_as_uint(n) << 23));
}

// The weight times 2^40, not yet rounded, of a token that passes all limits. Without limits, the
// largest logit is finite.
template <bool kLimited>
__device__ __forceinline__ float weight_of(const Weighing& by, float z) {
  const float x = exponent<!kLimited>(by, z);
  const float w = units(x);
  if constexpr (!kLimited) return w;
  const bool passes = z >= by.least && w >= by.fewest && fabsf(__fsub_rn(x, by.mean)) <= by.reach;
  return passes ? w : 0.0f;
}

__device__ __forceinline__ float weight_of_probability(float p) {
  return __fmul_rn(fminf(fmaxf(p, 0.0f), 1.0f), kUnit);
}

// Ties go to even.
__device__ __forceinline__ std::uint64_t whole_weight(float w) { return __float2ull_rn(w); }

// A sum of at most 2^12 whole weights, in the bits of floats that are too large for any others:
// conversions to 64 bits would cost more than the weights.
class WholeSum {
 public:
  __device__ __forceinline__ void add(float w) {
    const float high = __fadd_rn(w, kHigh);
    const float rest = __fsub_rn(w, __fsub_rn(high, kHigh));
    high_ += __float_as_uint(high) - kHighBits;
    low_ += __float_as_uint(__fadd_rn(rest, kLow)) - kLowBits;
  }
  __device__ __forceinline__ std::uint64_t sum() const {
    return (std::uint64_t{high_} << 20) +
           static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int32_t>(low_)));
  }

 private:
  static constexpr float kHigh = 0x1.8p43f;  // multiples of 2^20
  static constexpr float kLow = 0x1.8p23f;   // what is left of them: from -2^19 to 2^19
  static constexpr std::uint32_t kHighBits = 0x55400000;
  static constexpr std::uint32_t kLowBits = 0x4b400000;

  std::uint32_t high_ = 0;
  std::uint32_t low_ = 0;
};

}  // namespace transformer_kernels::cuda::sampling
