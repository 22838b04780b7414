// SPDX-License-Identifier: MIT
// The parts that epilogues of groups of rows have beside those of all products (epilogues.cuh).
#pragma once

#include "linear/cuda/epilogues.cuh"

namespace transformer_kernels::cuda::epilogues {

// v += the group's own bias, of kCount values; biases are (groups, cols).
template <int kCount = 1>
struct AddGroupBias {
  BiasVector bias[kCount];

  struct Columns {
    float v[kCount][ChunkColumns::kEights][2];
  };
  template <class T>
  __device__ __forceinline__ Columns columns(const ChunkColumns& at) const {
    Columns columns;
    const int first = at.group * at.cols;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const BiasVector own = bias[i];
#pragma unroll
      for (int eight = 0; eight < ChunkColumns::kEights; ++eight) {
        own.template two<T>(first + at.two(eight), columns.v[i][eight]);
      }
    }
    return columns;
  }
  template <class F>
  __device__ __forceinline__ void apply(const F& f, const Columns& columns) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) f.v[i][e] += columns.v[i][f.eight(e)][e % 2];
    }
  }
};

// Keep, where what it keeps is wanted.
template <int kCount>
struct KeepOnDemand : Keep<kCount> {
  static constexpr bool kKeepsOnDemand = true;
};

// GateSlope of a gate that is followed by a row factor, which all three have; the sums of each
// row's v f(gate) up are the gradients of the factors.
template <class Activation>
struct GateSlopeOfRows {
  static constexpr int kReads = 2;
  static constexpr int kKeeps = 1;
  static constexpr bool kKeepsOnDemand = true;
  static constexpr int kResults = 2;
  static constexpr bool kDotsRows = true;

  const float* factors;  // may be null
  float* dots;           // may be null

  template <class F>
  __device__ __forceinline__ void apply(const F& f) const {
    float product[8];
    const auto factor_of = [&](int e) {
      return factors == nullptr ? 1 : __ldg(factors + min(f.row(e), f.extent.rows - 1));
    };
    const float factor[2] = {factor_of(0), factor_of(2)};
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float own = factor[e / 2 % 2];
      const float sum = f.v[0][e];
      const float up = f.read[1][e];
      const auto both = Activation::value_and_slope(math::Fast{}, f.read[0][e]);
      const float value = both.value * up;
      f.dots[e / 2 % 2] += sum * value;
      product[e] = own * value;
      f.v[0][e] = own * sum * up * both.slope;
      f.v[1][e] = own * sum * both.value;
    }
    f.keep(0, product);
  }
};

}  // namespace transformer_kernels::cuda::epilogues
