// SPDX-License-Identifier: MIT
// Packs of a 16-bit x beside a float32 residual: four elements of x, which are moved at once for
// each pack of four floats.
#pragma once

#include "core/cuda/pack.cuh"

namespace transformer_kernels::cuda {

template <class X>
struct BranchPack {
  using Raw = uint2;

  static __device__ __forceinline__ Raw load(const X* pointer) {
    return load_global_8_in_order(pointer);
  }
  static __device__ __forceinline__ void store(X* pointer, Raw raw) {
    *reinterpret_cast<Raw*>(pointer) = raw;
  }

  static __device__ __forceinline__ void unpack(Raw raw, float* out) {
    widen_word<X>(raw.x, out);
    widen_word<X>(raw.y, out + 2);
  }
  static __device__ __forceinline__ Raw pack(const float* in) {
    return make_uint2(narrow_word<X>(in), narrow_word<X>(in + 2));
  }
};

// X of a problem or launch Mixed<X>, else T.
template <class Problem, class T>
struct BranchOf {
  using type = T;
};
template <template <class> class Mixed, class X, class T>
struct BranchOf<Mixed<X>, T> {
  using type = X;
};
template <class Problem, class T>
using branch_t = typename BranchOf<Problem, T>::type;

}  // namespace transformer_kernels::cuda
