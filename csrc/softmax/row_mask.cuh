// SPDX-License-Identifier: MIT
// The boolean, additive and causal masks of one row.
#pragma once

#include "core/cuda/pack.cuh"
#include "softmax/problem.h"

namespace transformer_kernels::cuda {

// kSize mask values from `source`, in loads of up to 16 bytes where it is aligned; or all the
// first.
template <class M, int kSize>
__device__ __forceinline__ void load_mask(const M* source, bool broadcast, M* out) {
  constexpr int kBytes = kSize * static_cast<int>(sizeof(M));
  struct alignas(kBytes < 16 ? kBytes : 16) Whole {
    M value[kSize];
  };
  if (!broadcast && reinterpret_cast<std::uintptr_t>(source) % alignof(Whole) == 0) {
    const Whole whole = *reinterpret_cast<const Whole*>(source);
#pragma unroll
    for (int k = 0; k < kSize; ++k) out[k] = whole.value[k];
  } else {
#pragma unroll
    for (int k = 0; k < kSize; ++k) out[k] = source[broadcast ? 0 : k];
  }
}

template <class T>
class MaskOfRow {
 public:
  using V = accumulate_t<T>;

  __device__ MaskOfRow(const SoftmaxForwardProblem& p, std::int64_t row)
      : mask_(p.mask),
        offset_(p.mask.row_offset(row)),
        visible_(p.visible_cols(row)) {}

  // Columns [0, visible()) take part under the causal mask.
  __device__ std::int64_t visible() const { return visible_; }

  // x = x * scale + mask, or -inf, for kSize columns from `col`.
  template <int kSize>
  __device__ __forceinline__ void apply(std::int64_t col, V scale, V* x) const {
#pragma unroll
    for (int k = 0; k < kSize; ++k) x[k] = product(x[k], scale);
    switch (mask_.kind) {
      case MaskKind::kNone: break;
      case MaskKind::kBool: select<kSize>(col, x); break;
      case MaskKind::kSameDType: add<T, kSize>(col, x); break;
      case MaskKind::kFloat32: add<float, kSize>(col, x); break;
    }
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (col + k >= visible_) x[k] = V(-INFINITY);
    }
  }

 private:
  template <class M>
  __device__ __forceinline__ const M* at(std::int64_t col) const {
    return static_cast<const M*>(mask_.data) + offset_ + col * mask_.col_stride;
  }

  template <int kSize>
  __device__ __forceinline__ void select(std::int64_t col, V* x) const {
    std::uint8_t takes_part[kSize];
    load_mask<std::uint8_t, kSize>(at<std::uint8_t>(col), mask_.col_stride == 0, takes_part);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (!takes_part[k]) x[k] = V(-INFINITY);
    }
  }

  template <class M, int kSize>
  __device__ __forceinline__ void add(std::int64_t col, V* x) const {
    M mask[kSize];
    load_mask<M, kSize>(at<M>(col), mask_.col_stride == 0, mask);
#pragma unroll
    for (int k = 0; k < kSize; ++k) x[k] += static_cast<V>(widen(mask[k]));
  }

  const RowMask& mask_;
  std::int64_t offset_;
  std::int64_t visible_;
};

}  // namespace transformer_kernels::cuda
