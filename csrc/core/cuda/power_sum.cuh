// SPDX-License-Identifier: MIT
// Sums of powers around a running maximum, and the merge of partial sums over the threads of a row.
#pragma once

#include "core/cuda/exponent.cuh"
#include "core/cuda/row.cuh"

namespace transformer_kernels::cuda {

// Over some elements z: their maximum, and the sum of exp(z - anchor(max)).
template <class V>
struct PowerSum {
  V max;
  V sum;
};

// The value that exponents are taken relative to. It is never -inf, which would turn elements of
// -inf into NaN.
template <class V>
__device__ __forceinline__ V anchor(V max) {
  return max == V(-INFINITY) ? V(0) : max;
}

// exp(distance), as exact as T is worth, of an element's distance from a maximum. The maximum comes
// off before the factor that a power of 2 takes: that product of the element itself would overflow
// near the largest number, and round off what large elements differ by.
template <class T, class V>
__device__ __forceinline__ V power_of(V distance) {
  return Exponent<T>::power(distance * Exponent<T>::kPerNatural);
}

// Merges kCount partial results, of which lane l of each group of kCount lanes brings the l-th.
template <class T, int kCount, class V>
__device__ __forceinline__ PowerSum<V> merge_lanes(PowerSum<V> part) {
  const V max = reduce_lanes<Max, kCount>(part.max);
  const V share = part.sum * power_of<T>(part.max - anchor(max));
  return {max, reduce_lanes<Add, kCount>(share)};
}

// Merges a row's partial results, which have a merge_lanes; all of its threads get the result.
template <class Plan, class T, class Partial>
__device__ __forceinline__ Partial merge_over_row(const Row<Plan, T>& row,
                                                  RowScratch<Plan, Partial>& scratch,
                                                  Partial part) {
  constexpr int kWarps = Plan::plan.warps();
  constexpr int kCluster = Plan::plan.cluster;
  part = merge_lanes<T, kWarp>(part);
  if constexpr (kWarps > 1) {
    part = merge_lanes<T, kWarps>(share_in_group(row, scratch, part)[threadIdx.x % kWarps]);
  }
  if constexpr (kCluster > 1) {
    part = merge_lanes<T, kCluster>(share_in_cluster(row, scratch, part)[threadIdx.x % kCluster]);
  }
  return part;
}

}  // namespace transformer_kernels::cuda
