// SPDX-License-Identifier: MIT
// Packs of the family's kernels, which a thread moves at once: kSize neighbouring elements of T, 16
// bytes or a single one. The last pack of a row may have fewer elements, `count`.
#pragma once

#include "core/cuda/pack.cuh"
#include "core/rows.h"

namespace transformer_kernels::cuda {

// The elements that a thread of a PointwiseGrid owns: a pack from column `col` on, in each of its
// rows.
struct PointwisePlace {
  std::int64_t col;
  std::int64_t first_row;

  __device__ __forceinline__ PointwisePlace(int pack_size, int rows_per_thread)
      : col((std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * pack_size) {
    first_row = row_block() * rows_per_thread * blockDim.y + threadIdx.y;
  }

  __device__ __forceinline__ static std::int64_t row_block() {
    return std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  }

  __device__ __forceinline__ std::int64_t row(int i) const {
    return first_row + static_cast<std::int64_t>(i) * blockDim.y;
  }
  template <class T>
  __device__ __forceinline__ T* element(const Rows& matrix, int i) const {
    return static_cast<T*>(matrix.data) + row(i) * matrix.stride + col;
  }
};

template <class T>
__device__ __forceinline__ T* row_of(const Rows& matrix, std::int64_t row) {
  return static_cast<T*>(matrix.data) + row * matrix.stride;
}

// Loads a pack by plain loads: beside plain stores, loads that no cache keeps cost 2 to 6 %.
template <class T, int kSize>
__device__ __forceinline__ typename Pack<T, kSize>::Raw load_pack(const T* pointer,
                                                                  std::int64_t count) {
  if constexpr (kSize == 1) {
    return *pointer;
  } else {
    if (count >= kSize) return *reinterpret_cast<const uint4*>(pointer);
    alignas(16) T element[kSize] = {};
#pragma unroll
    for (int k = 0; k < kSize - 1; ++k) {
      if (k < count) element[k] = pointer[k];
    }
    return *reinterpret_cast<const uint4*>(element);
  }
}

template <class T, int kSize>
__device__ __forceinline__ void store_pack(T* pointer, const accumulate_t<T> (&value)[kSize],
                                           std::int64_t count) {
  using P = Pack<T, kSize>;
  if (kSize == 1 || count >= kSize) return P::store(pointer, P::pack(value));
#pragma unroll
  for (int k = 0; k < kSize - 1; ++k) {
    if (k < count) pointer[k] = narrow<T>(value[k]);
  }
}

// The biases of a pack, as numbers. B: their storage. Every row reads them: they stay in L1.
template <class B, int kSize, class A>
__device__ __forceinline__ void load_bias(const B* pointer, std::int64_t count, A (&value)[kSize]) {
  constexpr int kPieces = kSize == 1 ? 1 : kSize * static_cast<int>(sizeof(B)) / 16;
  using P = Pack<B, kSize / kPieces>;
  if (kSize == 1 || count >= kSize) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const auto* source = reinterpret_cast<const typename P::Raw*>(pointer) + i;
      P::unpack(*source, value + i * P::size);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kSize; ++k) value[k] = k < count ? widen(pointer[k]) : 0;
  }
}

// load_bias() for a bias that is stored as T, the storage type of x, or as the type of sums. An
// absent bias counts as -0, which leaves every sum as it is.
template <class T, int kSize, class A = accumulate_t<T>>
__device__ __forceinline__ void load_bias(const void* bias, bool is_wide, std::int64_t col,
                                          std::int64_t count, A (&value)[kSize]) {
  if (bias == nullptr) {
#pragma unroll
    for (A& v : value) v = -A{0};
  } else if (is_wide) {
    load_bias(static_cast<const A*>(bias) + col, count, value);
  } else {
    load_bias(static_cast<const T*>(bias) + col, count, value);
  }
}

}  // namespace transformer_kernels::cuda
