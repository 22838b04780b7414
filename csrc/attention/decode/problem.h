// SPDX-License-Identifier: MIT
// The room of attention over a cache. This header has its checked arguments, and the division of a
// sequence's keys into chunks.
#pragma once

#include "attention/problem.h"
#include "core/rounding.h"
#include "transformer_kernels/attention/decode.h"

namespace transformer_kernels {

// Keys of a chunk are a multiple of this, but in the last one.
inline constexpr std::int64_t kCacheBlock = 64;

// Rows of keys or values in pages, or scales, of which a row has one. Without pages each sequence
// is one. Strides are in elements.
struct CacheRows {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t page_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  [[gnu::always_inline]] char* address(std::int64_t page, std::int64_t row,
                                       std::int64_t head) const {
    const std::int64_t index = page * page_stride + row * row_stride + head * head_stride;
    return static_cast<char*>(data) + index * size_of(dtype);
  }
};

// cos or sin of each position.
struct CacheAngles {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t stride = 0;

  const char* row(std::int64_t position) const {
    return static_cast<const char*>(data) + position * stride * size_of(dtype);
  }
};

// Chunk c of a sequence's keys begins at keys.begin + c * step. Chunks depend on the sequence
// alone, and so do results.
struct CacheChunks {
  Range keys;  // those that a query may see
  std::int64_t step;
  std::int64_t count;  // 1 where there are no keys

  Range operator[](std::int64_t c) const {
    const std::int64_t begin = keys.begin + c * step;
    return {begin, std::min(begin + step, keys.end)};
  }
};

// `keys` of the base are unused; its k and v are the new tokens.
struct KvCacheProblem : AttentionProblem {
  std::int64_t added;      // new tokens of each sequence
  std::int64_t page_size;  // without a table the capacity of a sequence
  std::int64_t pages;
  CacheRows k_cache;
  CacheRows v_cache;
  CacheRows k_scale;  // of caches of int8
  CacheRows v_scale;
  const std::int32_t* table;  // null: page b is sequence b
  std::int64_t table_stride;
  std::int64_t table_columns;
  const std::int32_t* lengths;  // these, or those in 64 bits, or none: the cache is full
  const std::int64_t* long_lengths;
  CacheAngles cos;
  CacheAngles sin;
  std::int64_t positions;    // rows of cos and sin
  std::int64_t frequencies;  // 0: nothing is rotated
  bool interleaved;
  HeadRows out;
  float* lse;  // may be null

  constexpr std::int64_t capacity() const { return page_size * table_columns; }
  std::int64_t length(std::int64_t b) const {
    if (lengths != nullptr) return lengths[b];
    return long_lengths != nullptr ? long_lengths[b] : capacity() - added;
  }
  std::int64_t page(std::int64_t b, std::int64_t index) const {
    return table == nullptr ? b : table[b * table_stride + index];
  }
  Sequence with_new(std::int64_t b) const { return {0, queries, 0, length(b) + added}; }

  // Rows of q that read one head of the cache: row r is query r % queries of its head r / queries.
  constexpr std::int64_t group_rows() const { return group() * queries; }

  // Longer sequences have more chunks, up to a number for which results of chunks are few beside
  // the keys.
  CacheChunks chunks(std::int64_t b) const {
    constexpr std::int64_t kLeastKeys = 256;
    constexpr std::int64_t kMostChunks = 32;
    constexpr std::int64_t kMostRows = 512;  // of all chunks together
    const std::int64_t one = 1;
    const Range keys = visible(with_new(b), Range{0, queries});
    const std::int64_t most = std::clamp(kMostRows / group_rows(), one, kMostChunks);
    const std::int64_t wanted = std::clamp(divide_up(keys.size(), kLeastKeys), one, most);
    const std::int64_t step = rounded_up(divide_up(keys.size(), wanted), kCacheBlock);
    return {keys, step, step == 0 ? 1 : divide_up(keys.size(), step)};
  }
};

std::string describe(const KvCacheProblem& problem);

namespace cpu {
void check_cache(const Context& context, const KvCacheProblem& problem);
void attention_with_kv_cache(const Context& context, const KvCacheProblem& problem);
}  // namespace cpu
namespace cuda {
void attention_with_kv_cache(const Context& context, const KvCacheProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
