// SPDX-License-Identifier: MIT
// The last step of the forward pass, which the engines share.
#pragma once

#include "core/cuda/power_sum.cuh"

namespace transformer_kernels::cuda {

// The last step of each element: y = v * gain + offset, with v a power or, for the logarithm, an
// distance from an anchor. `lag` is how far v's anchor lies below the row's.
template <class V>
struct Finish {
  V gain;
  V offset;
};

template <class T, bool kMasked, bool kLagging, class V>
__device__ __forceinline__ Finish<V> finish_of(bool log, V lag, V sum) {
  using E = Exponent<T>;
  const bool all_masked = kMasked && sum == 0;
  if (log) return {V(1), lag - (all_masked ? V(0) : E::log(sum) * E::kNatural)};
  const V inverse = sum > 0 ? reciprocal(sum) : all_masked ? V(0) : V(NAN);
  return {kLagging ? power_of<T>(lag) * inverse : inverse, V(0)};
}

}  // namespace transformer_kernels::cuda
