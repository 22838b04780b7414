// SPDX-License-Identifier: MIT
// A ring of tiles in shared memory that TMA fills and warps read: for each stage an mbarrier that
// says full and one that says empty. Each thread that takes part walks with an object of its own.
#pragma once

#include "core/cuda/ptx.cuh"

namespace transformer_kernels::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <int kStages, int kBytes>
class TileRing {
 public:
  // `barriers`: two for each stage.
  __device__ __forceinline__ TileRing(std::uint32_t data, std::uint32_t barriers)
      : data_(data),
        barriers_(barriers) {}

  // By one thread, before anything else. `readers` arrivals empty a stage.
  __device__ __forceinline__ void init(int readers) const {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(barriers_ + 8 * i, 1);
      mbarrier_init(barriers_ + 8 * (kStages + i), readers);
    }
  }

  __device__ __forceinline__ int stage() const {
    return position_ < kStages ? position_ : position_ - kStages;
  }
  __device__ __forceinline__ std::uint32_t data() const { return data_ + stage() * kBytes; }
  __device__ __forceinline__ std::uint32_t full() const { return barriers_ + 8 * stage(); }
  __device__ __forceinline__ std::uint32_t empty() const {
    return barriers_ + 8 * (kStages + stage());
  }

  __device__ __forceinline__ void wait_full() const { mbarrier_wait(full(), phase()); }
  // The writer's first round finds every stage empty.
  __device__ __forceinline__ void wait_empty() const { mbarrier_wait(empty(), phase() ^ 1); }

  __device__ __forceinline__ int phase() const { return position_ < kStages ? 0 : 1; }
  __device__ __forceinline__ void advance() {
    position_ = position_ + 1 == 2 * kStages ? 0 : position_ + 1;
  }
  // Past `stages` that others read.
  __device__ __forceinline__ void skip(int stages) {
    position_ = (position_ + stages) % (2 * kStages);
  }

 private:
  std::uint32_t data_;
  std::uint32_t barriers_;
  int position_ = 0;  // over two rounds: stage and phase in one register
};

#endif  // sm_90

}  // namespace transformer_kernels::cuda
