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

// The unit of a mean relative to its anchor: a mean of subnormal numbers keeps 24 bits, or 53.
template <class V>
inline constexpr V kNearUnit = sizeof(V) == 8 ? V(0x1p-53) : V(0x1p-24);
// Elements whose squares overflow, far ones, are summed once more, as multiples of this unit:
// neither can 2^31 such squares overflow, nor those underflow that made a sum overflow.
template <class V>
inline constexpr V kFarUnit = sizeof(V) == 8 ? V(0x1p600) : V(0x1p80f);

// Statistics of some elements: their mean is anchor + mean in units, m2 the sum of squares around
// it. Without centring anchor and mean stay 0. `far` elements have an infinite m2 and no anchor;
// the sum of squares is then far_m2, in units.
template <class V>
struct alignas(4 * sizeof(V)) Moments {
  V anchor;
  V mean;
  V m2;
  V far_m2;

  __device__ __forceinline__ bool far() const {
    return __builtin_expect(!(m2 < V(INFINITY)), false);
  }
  __device__ __forceinline__ V unit() const { return far() ? kFarUnit<V> : kNearUnit<V>; }
  __device__ __forceinline__ V whole_mean() const { return fma(mean, unit(), anchor); }
  // The mean beyond `anchor`, negated, in units of a deviation.
  __device__ __forceinline__ V offset(V rstd) const { return -(mean * rstd) * unit(); }
};

// The anchor of a warp's sums: the mean of two elements of a pack, which is seldom an outlier. The
// mean of two equal values is exact; that of the largest ones does not overflow.
template <int kSize, class V>
__device__ __forceinline__ V anchor_in_pack(const V* value) {
  return kSize == 1 ? value[0] : fma(V(0.5), value[0], V(0.5) * value[kSize - 1]);
}

// Sums around an anchor stand while its squared distance from the mean is at most so many times the
// variance: farther off, squares round away digits of it, at 8 too many (docs/decisions/0005).
template <class V>
inline constexpr V kTrustedAnchor = 4;

// The moments of far elements: revisit(body) calls body with each one that this thread owns, add()
// sums over the threads that share them.
template <bool kCenter, class V, class Revisit, class Sum>
__device__ __forceinline__ Moments<V> far_moments(V per_element, Revisit&& revisit, Sum&& add) {
  constexpr V kScale = 1 / kFarUnit<V>;
  V mean = 0, squares = 0;
  if constexpr (kCenter) {
    revisit([&](V value) { mean = fma(value, kScale, mean); });
    mean = add(mean) * per_element;
  }
  revisit([&](V value) {
    const V off = fma(value, kScale, -mean);
    squares += off * off;
  });
  return {V(0), mean, V(INFINITY), add(squares)};
}

// The moments of one warp's elements, `count` in all: visit(body) calls body with each element that
// this thread owns, revisit(body) does so once more. An anchor far from the mean, an outlier, would
// cost the squares their digits: there they are summed once more, around the mean.
template <bool kCenter, class V, class Visit, class Revisit>
__device__ __forceinline__ Moments<V> moments_of_warp(V anchor, V count, Visit&& visit,
                                                      Revisit&& revisit) {
  Moments<V> moments{anchor, V(0), V(0), V(0)};
  if constexpr (!kCenter) {
    V squares = 0;
    visit([&](V value) { squares += value * value; });
    moments.m2 = reduce_lanes<Add>(squares);
  } else {
    V sum = 0, squares = 0;
    visit([&](V value) {
      const V off = value - anchor;
      sum += off;
      squares += off * off;
    });
    sum = reduce_lanes<Add>(sum);
    squares = reduce_lanes<Add>(squares);
    const V per_element = reciprocal(count);
    const V mean = sum * per_element;
    const V shift = sum * mean;
    moments.mean = sum * (per_element / kNearUnit<V>);
    moments.m2 = squares - shift;
    if (shift > kTrustedAnchor<V> * moments.m2) {
      V around_mean = 0;
      revisit([&](V value) {
        const V off = value - anchor - mean;
        around_mean += off * off;
      });
      moments.m2 = reduce_lanes<Add>(around_mean);
    }
  }
  if (!moments.far()) return moments;
  return far_moments<kCenter>(reciprocal(count), revisit,
                              [](V part) { return reduce_lanes<Add>(part); });
}

// The sum of squares of `part` in units of far elements.
template <class V>
__device__ __forceinline__ V far_m2_of(const Moments<V>& part) {
  constexpr V kScale = 1 / kFarUnit<V>;
  return part.far() ? part.far_m2 : part.m2 * kScale * kScale;
}

// Merges kCount partial results, of which lane l of each group of kCount lanes brings the l-th.
template <int kCount, bool kCenter, class V>
__device__ __forceinline__ Moments<V> merge_moments(Moments<V> part, V count, V total) {
  Moments<V> merged{V(0), V(0), V(0), V(0)};
  if constexpr (!kCenter) {
    merged.m2 = reduce_lanes<Add, kCount>(part.m2);
    if (merged.far()) merged.far_m2 = reduce_lanes<Add, kCount>(far_m2_of(part));
    return merged;
  } else {
    const V per_element = reciprocal(total);
    merged.anchor = __shfl_sync(kAllLanes, part.anchor, 0, kCount);
    const V from_anchor = fma(part.anchor - merged.anchor, 1 / kNearUnit<V>, part.mean);
    merged.mean = reduce_lanes<Add, kCount>(from_anchor * count) * per_element;
    const V off = (from_anchor - merged.mean) * kNearUnit<V>;
    merged.m2 = reduce_lanes<Add, kCount>(part.m2 + count * off * off);
    if (!merged.far()) return merged;
    constexpr V kScale = 1 / kFarUnit<V>;
    const V far_from = fma(part.anchor, kScale, part.mean * (part.unit() * kScale));
    const V far_mean = reduce_lanes<Add, kCount>(far_from * count) * per_element;
    const V far_off = far_from - far_mean;
    const V far_m2 = far_m2_of(part) + count * far_off * far_off;
    return {V(0), far_mean, V(INFINITY), reduce_lanes<Add, kCount>(far_m2)};
  }
}

// 1 / sqrt(variance + eps), where the variance is m2 * per_element.
template <class V>
__device__ __forceinline__ V reciprocal_deviation(const Moments<V>& moments, V per_element,
                                                  double eps) {
  const V variance = moments.m2 * per_element + static_cast<V>(eps);
  const V far_variance = moments.far_m2 * per_element;
  if constexpr (std::is_same_v<V, double>) {
    return moments.far() ? 1.0 / sqrt(far_variance) / kFarUnit<V> : 1.0 / sqrt(variance);
  } else {
    const float root = rsqrtf(moments.far() ? far_variance : variance);
    return moments.far() ? root * (1 / kFarUnit<V>) : root;
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
