// SPDX-License-Identifier: MIT
// The CUDA engines of attention over a cache, best first. Each leaves new tokens, and the sum of
// several chunks, to cuda.cu. No CUDA header, so that the choice is tested without a GPU.
//
//   sm80    tensor cores of every architecture from sm_80 on: rows of a cache that are whole pieces
//           of 16 bytes, beside a q of 16 bits
//   plain   float32 arithmetic on every architecture: all that the contract allows
#pragma once

#include "attention/decode/common/split.h"
#include "core/cuda/device.h"

namespace transformer_kernels::cuda {

// Chunks leave here what is to be added up: a weighted sum of values for each row of the group, in
// rows of `width` floats, and for each of these its largest score and the sum of its weights.
struct CacheParts {
  float* out = nullptr;
  float* top_and_sum = nullptr;
  int width = 0;
};

struct CacheEngine {
  const char* name;
  // Null where the engine runs the problem on the device, else why not.
  const char* (*refusal)(const KvCacheProblem& problem, const DeviceLimits& device);
  // The grid of its CTAs.
  CacheGrid (*grid)(const KvCacheProblem& problem);
  // Attends to the chunks: those of sequences that have one only go to out and lse, others to
  // `parts`.
  void (*attend)(const Context& context, const KvCacheProblem& problem, const CacheGrid& grid,
                 const CacheParts& parts);
  // Adds up the chunks of sequences that have several.
  void (*combine)(const Context& context, const KvCacheProblem& problem, const CacheGrid& grid,
                  const CacheParts& parts);
};

inline std::string name_of(const CacheEngine* engine) { return engine->name; }

extern const CacheEngine kTensorCoreCacheEngine;
extern const CacheEngine kPlainCacheEngine;

}  // namespace transformer_kernels::cuda
