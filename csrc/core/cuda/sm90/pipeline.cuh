// SPDX-License-Identifier: MIT
// A ring of stages in shared memory between producers and consumers. Each stage has two mbarriers,
// one that says full and one that says empty.
//
//   producer   acquire | commit, copies to data() on full() | advance, acquire | commit, ...
//   consumer   wait ....................................... | read data() | release, advance, wait
//
// Each thread that takes part has a Pipeline object of its own, which is one register, its
// position: the addresses are constants.
#pragma once

#include "core/cuda/ptx.cuh"

namespace transformer_kernels::cuda {

template <int kStages>
struct PipelineBarriers {
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <int kStages, int kStageBytes>
class Pipeline {
 public:
  __device__ __forceinline__ Pipeline(const void* stages, const PipelineBarriers<kStages>& barriers)
      : stages_(shared_address(stages)),
        full_(shared_address(barriers.full)),
        empty_(shared_address(barriers.empty)) {}

  // One thread calls this before anything else. `consumers` calls of release() empty a stage.
  __device__ __forceinline__ void init(int consumers) const {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full_ + 8 * i, 1);
      mbarrier_init(empty_ + 8 * i, consumers);
    }
  }

  // ---------------------------------------------------------------- producer

  // Waits until the stage is empty, as every stage is in the first round.
  __device__ __forceinline__ void acquire() const { mbarrier_wait(empty(), phase() ^ 1); }
  // Fills the stage: consumers see what this thread has stored.
  __device__ __forceinline__ void commit() const { mbarrier_arrive(full()); }
  // Fills the stage once copies on full() have brought `bytes` bytes.
  __device__ __forceinline__ void commit(int bytes) const {
    mbarrier_arrive_expect(full(), static_cast<std::uint32_t>(bytes));
  }

  // ---------------------------------------------------------------- consumer

  // Waits until the stage is full.
  __device__ __forceinline__ void wait() const { mbarrier_wait(full(), phase()); }
  // Lets producers overwrite this thread's share of the stage.
  __device__ __forceinline__ void release() const { mbarrier_arrive(empty()); }

  // ---------------------------------------------------------------- both

  __device__ __forceinline__ void advance() {
    position_ = position_ + 1 == 2 * kStages ? 0 : position_ + 1;
  }
  // Past `stages` that other threads read.
  __device__ __forceinline__ void skip(int stages) {
    position_ = (position_ + stages) % (2 * kStages);
  }

  __device__ __forceinline__ int stage() const {
    return position_ < kStages ? position_ : position_ - kStages;
  }
  __device__ __forceinline__ int phase() const { return position_ < kStages ? 0 : 1; }
  __device__ __forceinline__ std::uint32_t data() const { return stages_ + stage() * kStageBytes; }
  __device__ __forceinline__ std::uint32_t full() const { return full_ + 8 * stage(); }
  __device__ __forceinline__ std::uint32_t empty() const { return empty_ + 8 * stage(); }

 private:
  std::uint32_t stages_;
  std::uint32_t full_;
  std::uint32_t empty_;
  int position_ = 0;  // over two rounds: stage and phase in one register
};

#endif  // sm_90

}  // namespace transformer_kernels::cuda
