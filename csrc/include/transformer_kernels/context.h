// SPDX-License-Identifier: MIT
// Where an op runs and where it gets threads and scratch memory from.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

namespace fpga {
class Array;
}

// Work of one parallel loop: process the half-open range [begin, end).
using RangeBody = void (*)(void* argument, std::int64_t begin, std::int64_t end);

// Runs `body` over [0, count) in parallel, in chunks of at least `grain`, and returns when all is
// done. Chunks may run on any thread, in any order; every index is covered exactly once.
struct ParallelFor {
  void (*run)(void* user, std::int64_t count, std::int64_t grain, RangeBody body,
              void* argument) = nullptr;
  void* user = nullptr;
};

// Provides scratch memory on the context's device. `release` is called after the last kernel that
// uses the memory has been enqueued on the stream, so a stream-ordered allocator may reuse it at
// once.
struct Workspace {
  void* (*allocate)(void* user, std::size_t bytes) = nullptr;
  void (*release)(void* user, void* memory) = nullptr;
  void* user = nullptr;
};

// Every member left at its default means "use the library's own": the default stream, the
// library's thread pool, stream-ordered CUDA memory.
struct Context {
  Device device{};
  void* stream = nullptr;  // a cudaStream_t of `device`; ignored on the CPU
  ParallelFor parallel_for{};
  Workspace workspace{};
  fpga::Array* array = nullptr;  // runs the op in place of the CPU (fpga/array.h)
  // The op checks its arguments, as in any call, and returns. Views need no memory then, but for
  // integer tensors on the CPU, whose numbers are checked.
  bool checks_only = false;
};

}  // namespace transformer_kernels
