// SPDX-License-Identifier: MIT
// Statistics of a row in parts, and their use: the code that the forward kernels of the norms
// share.
//
// Statistics have two levels. A warp sums its elements and their squares in one pass, both relative
// to an anchor, the mean of two elements that it owns: the common part of a row is subtracted
// before a sum can round it, and a row of one value gives exactly the bias. The warps' (mean, M2)
// then merge around the row's mean by their element counts (Chan, Golub and LeVeque 1983).
#pragma once

#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "norm/problem.h"

namespace transformer_kernels::cuda {

// The mean is anchor + mean, m2 the sum of squares around it. Without centring both parts stay 0.
template <class V>
struct alignas(4 * sizeof(V)) Moments {
  V anchor;
  V mean;
  V m2;
};

// The anchor of a warp's sums: the mean of two elements of a pack, which is seldom an outlier. The
// mean of two equal values is exact.
template <int kSize, class V>
__device__ __forceinline__ V anchor_in_pack(const V* value) {
  return kSize == 1 ? value[0] : V(0.5) * (value[0] + value[kSize - 1]);
}

// Sums around an anchor stand while its squared distance from the mean is at most so many times the
// variance: farther off, squares round away digits of it, at 8 too many (docs/decisions/0005).
template <class V>
inline constexpr V kTrustedAnchor = 4;

// The moments of one warp's elements, `count` in all: visit(body) calls body with each element that
// this thread owns. An anchor far from the mean, an outlier, would cost the squares their digits:
// there they are summed once more, around the mean.
template <bool kCenter, class V, class Visit, class Revisit>
__device__ __forceinline__ Moments<V> moments_of_warp(V anchor, V count, Visit&& visit,
                                                      Revisit&& revisit) {
  if constexpr (!kCenter) {
    V squares = 0;
    visit([&](V value) { squares += value * value; });
    return {V(0), V(0), reduce_lanes<Add>(squares)};
  } else {
    V sum = 0, squares = 0;
    visit([&](V value) {
      const V off = value - anchor;
      sum += off;
      squares += off * off;
    });
    sum = reduce_lanes<Add>(sum);
    squares = reduce_lanes<Add>(squares);
    const V mean = sum * reciprocal(count);
    const V shift = sum * mean;
    V m2 = squares - shift;
    if (shift > kTrustedAnchor<V> * m2) {
      m2 = 0;
      revisit([&](V value) {
        const V off = value - anchor - mean;
        m2 += off * off;
      });
      m2 = reduce_lanes<Add>(m2);
    }
    return {anchor, mean, m2};
  }
}

// Merges kCount partial results, of which lane l of each group of kCount lanes brings the l-th.
template <int kCount, bool kCenter, class V>
__device__ __forceinline__ Moments<V> merge_moments(Moments<V> part, V count, V total) {
  if constexpr (!kCenter) return {V(0), V(0), reduce_lanes<Add, kCount>(part.m2)};
  const V anchor = __shfl_sync(kAllLanes, part.anchor, 0, kCount);
  const V from_anchor = part.anchor - anchor + part.mean;
  const V mean = reduce_lanes<Add, kCount>(from_anchor * count) * reciprocal(total);
  const V off = from_anchor - mean;
  return {anchor, mean, reduce_lanes<Add, kCount>(part.m2 + count * off * off)};
}

// 1 / sqrt(variance + eps)
template <class V>
__device__ __forceinline__ V reciprocal_deviation(V variance, double eps) {
  if constexpr (std::is_same_v<V, double>) {
    return 1.0 / sqrt(variance + eps);
  } else {
    return rsqrtf(variance + static_cast<float>(eps));
  }
}

// weight and bias of one pack. A Problem says which of the two there are.
template <class W, int kSize>
struct Affine {
  ParameterPack<W, kSize> weight;
  ParameterPack<W, kSize> bias;

  __device__ __forceinline__ void load(const NormForwardProblem& p, std::int64_t col) {
    if (p.weight) weight.load(static_cast<const W*>(p.weight) + col);
    if (p.bias) bias.load(static_cast<const W*>(p.bias) + col);
  }

  // load() at any alignment, for a pack that may reach out of the row.
  __device__ __forceinline__ void load_shifted(const NormForwardProblem& p, std::int64_t col) {
    if (p.weight) weight.load_shifted(static_cast<const W*>(p.weight), col, p.cols);
    if (p.bias) bias.load_shifted(static_cast<const W*>(p.bias), col, p.cols);
  }

  // This Affine as floats.
  __device__ __forceinline__ Affine<float, kSize> widened() const {
    return {weight.widened(), bias.widened()};
  }

  // value = value * w + b, one after the other: few registers matter more than one instruction.
  template <class Problem, class V>
  __device__ __forceinline__ void apply(const Problem& p, V* value) const {
    V parameter[kSize];
    if (p.weight) {
      weight.unpack(parameter);
      if (p.zero_centered_weight) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) parameter[k] += V(1);
      }
#pragma unroll
      for (int k = 0; k < kSize; ++k) value[k] *= parameter[k];
    }
    if (p.bias) {
      bias.unpack(parameter);
#pragma unroll
      for (int k = 0; k < kSize; ++k) value[k] += parameter[k];
    }
  }
};

}  // namespace transformer_kernels::cuda
