// SPDX-License-Identifier: MIT
// A turn that passes round the warpgroups, so that one works while the others wait.
#pragma once

#include "core/cuda/ptx.cuh"

namespace transformer_kernels::cuda {

// Takes kGroups named barriers. Group 0 has the first turn. Every pass meets one wait: who passed
// last leaves a turn to the group after it, which takes it before it ends.
template <int kGroups, int kFirstBarrier>
class Turn {
 public:
  __device__ __forceinline__ explicit Turn(int group) : group_(group) {
    if (group == kGroups - 1) pass();
  }

  __device__ __forceinline__ void wait() const { named_barrier(kFirstBarrier + group_, kThreads); }
  __device__ __forceinline__ void pass() const {
    const int next = group_ + 1 == kGroups ? 0 : group_ + 1;
    named_barrier_arrive(kFirstBarrier + next, kThreads);
  }

 private:
  static constexpr int kThreads = 256;  // of who waits and who passes

  int group_;
};

}  // namespace transformer_kernels::cuda
