// SPDX-License-Identifier: MIT
// CPU: attention over a cache. This file declares the exports of the source that is compiled once
// per instruction set; cpu.cpp deals their work out to threads.
//
//   prepare    widens and rotates rows of q, writes new tokens into the caches
//   attend     some rows of q that read one head of the cache, against a chunk of its keys
//   finish     adds up the chunks of these rows, in their order
#pragma once

#include "attention/decode/problem.h"
#include "core/cpu/isa.h"
#include "core/cpu/scratch.h"

namespace transformer_kernels::cpu {

// Rows of q that a work item takes at most, all of which read the same keys.
inline constexpr std::int64_t kCacheRows = 32;

// Rows of q in float, as the products read them: those of one head of a sequence's cache follow
// each other.
struct PreparedRows {
  float* data;
  std::int64_t step;

  float* row(const KvCacheProblem& p, std::int64_t batch, std::int64_t kv_head,
             std::int64_t row) const {
    return data + ((batch * p.kv_heads + kv_head) * p.group_rows() + row) * step;
  }
};

// Results of rows of q in a chunk: a weighted sum of values, in the order of the products, the
// largest score and the sum of exp(score - largest).
struct PartialRows {
  float* data;
  std::int64_t step;

  static constexpr std::int64_t step_of(std::int64_t value_dim) {
    return wide_cols(value_dim) + static_cast<std::int64_t>(kCacheLine / sizeof(float));
  }
  float* out(std::int64_t row) const { return data + row * step; }
  float& top(std::int64_t row) const { return data[(row + 1) * step - 1]; }
  float& sum(std::int64_t row) const { return data[(row + 1) * step - 2]; }
  PartialRows from(std::int64_t row) const { return {data + row * step, step}; }
};

struct CacheItem {
  std::int64_t batch;
  std::int64_t kv_head;
  Range rows;  // of the group
  Range keys;  // of the chunk
};

struct KvCacheKernels {
  // Row `row` of q, of (B, Hk, rows of the group), or a head of a new token, of (B, added, Hk).
  void (*prepare)(const KvCacheProblem& problem, std::int64_t row, PreparedRows q);
  void (*append)(const KvCacheProblem& problem, std::int64_t row);
  void (*attend)(const KvCacheProblem& problem, const CacheItem& item, PreparedRows q,
                 PartialRows found);
  // `found` holds the item's rows of one chunk after the other, `count` of them.
  void (*finish)(const KvCacheProblem& problem, const CacheItem& item, PartialRows found,
                 std::int64_t count);
};

// By what a cache holds.
struct KvCacheKernelTable {
  KvCacheKernels of_float;
  KvCacheKernels of_half;
  KvCacheKernels of_bfloat16;
  KvCacheKernels of_int8;

  const KvCacheKernels& of(DType stored) const {
    if (stored == DType::kInt8) return of_int8;
    if (stored == DType::kFloat32) return of_float;
    return stored == DType::kFloat16 ? of_half : of_bfloat16;
  }
};

TFK_DECLARE_PER_ISA(extern const KvCacheKernelTable kv_cache_kernels)

}  // namespace transformer_kernels::cpu
