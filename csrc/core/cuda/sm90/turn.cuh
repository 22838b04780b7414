// SPDX-License-Identifier: MIT
// A turn that two warpgroups pass to and fro, so that one works while the other waits.
#pragma once

#include "core/cuda/ptx.cuh"

namespace transformer_kernels::cuda {

// Group 0 has the first turn. Every pass meets one wait: who passed last leaves a turn to the other
// group, which takes it before it ends.
class Turn {
 public:
  // Two named barriers from `first_barrier` on.
  __device__ __forceinline__ Turn(int group, int first_barrier)
      : own_(first_barrier + group),
        other_(first_barrier + 1 - group) {
    if (group == 1) pass();
  }

  __device__ __forceinline__ void wait() const { named_barrier(own_, kThreads); }
  __device__ __forceinline__ void pass() const { named_barrier_arrive(other_, kThreads); }

 private:
  static constexpr int kThreads = 256;  // of both groups

  int own_;
  int other_;
};

}  // namespace transformer_kernels::cuda
