// SPDX-License-Identifier: MIT
// A queue of work items that the CTAs of a persistent kernel take one by one, in the order of their
// numbers. A CTA with a short item takes the next one sooner.
#pragma once

#include <optional>

#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"

namespace transformer_kernels::cuda {

struct WorkQueue {
  int items;
  int* taken;  // beyond the first of each CTA; null: a CTA has one at most

  // One thread of a CTA takes items. The first is that of the CTA's own number; then it takes the
  // next item that no CTA has. Numbers from `items` on mean that there is none.
  __device__ __forceinline__ int first() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int next() const {
    return static_cast<int>(gridDim.x) + (taken == nullptr ? 0 : atomicAdd(taken, 1));
  }
};

// The counter of a queue, for as long as the kernel that has it is launched.
class WorkCounter {
 public:
  WorkCounter(const char* op, const Context& context, std::int64_t items, std::int64_t ctas)
      : items_(static_cast<int>(items)) {
    if (items <= ctas) return;
    memory_.emplace(op, context, sizeof(int));
    const auto stream = static_cast<cudaStream_t>(context.stream);
    check_cuda(op, cudaMemsetAsync(memory_->as<void>(), 0, sizeof(int), stream));
  }

  WorkQueue queue() const { return {items_, memory_ ? memory_->as<int>() : nullptr}; }

 private:
  int items_;
  std::optional<Scratch> memory_;
};

}  // namespace transformer_kernels::cuda
