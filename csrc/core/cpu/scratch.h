// SPDX-License-Identifier: MIT
// Scratch memory for the duration of a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/rounding.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels::cpu {

inline constexpr std::size_t kCacheLine = 64;

// Columns of memory for a wide row, whose last vector is whole (simd.h).
constexpr std::int64_t wide_cols(std::int64_t cols) {
  constexpr std::int64_t kMostLanes = 32;
  return rounded_up(cols, kMostLanes);
}

// Memory of the calling thread, from the context's workspace where it has one.
class Scratch {
 public:
  Scratch(const Context& context, std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }

 private:
  Workspace workspace_;
  void* data_;
};

// Scratch memory aligned to a cache line.
class AlignedScratch {
 public:
  AlignedScratch(const Context& context, std::size_t bytes)
      : scratch_(context, bytes == 0 ? 0 : bytes + kCacheLine) {}

  void* data() const {
    const auto past = reinterpret_cast<std::uintptr_t>(scratch_.data()) % kCacheLine;
    return static_cast<std::byte*>(scratch_.data()) + (kCacheLine - past) % kCacheLine;
  }

 private:
  Scratch scratch_;
};

// One row in accumulation precision, for a thread of a parallel loop. Rows that fit lie on the
// thread's stack; longer ones on the heap, since a context's workspace need not be thread-safe.
class RowScratch {
 public:
  explicit RowScratch(std::size_t bytes)
      : heap_(bytes > kStackBytes ? new std::byte[bytes] : nullptr) {}

  void* data() { return heap_ ? heap_.get() : stack_; }

 private:
  static constexpr std::size_t kStackBytes = 32 * 1024;

  alignas(kCacheLine) std::byte stack_[kStackBytes];
  std::unique_ptr<std::byte[]> heap_;
};

}  // namespace transformer_kernels::cpu
