// SPDX-License-Identifier: MIT
// How the CUDA engines cut a sequence's keys into chunks, each the work of one CTA. A chunk depends
// on the sequence and on the heads of the call alone, so that results depend on neither neighbours
// nor capacity; the grid depends on shapes alone, so that a graph of launches stays right when
// lengths change. No CUDA header, so that it is tested without a GPU.
#pragma once

#include <algorithm>

#include "attention/decode/problem.h"

namespace transformer_kernels::cuda {

// Chunks begin at a multiple of this, and pages are multiples of it.
inline constexpr int kCacheUnit = 16;
// About the least keys of a chunk, where there are more: what a CTA's begin and end cost is little
// beside them.
inline constexpr int kLeastChunk = 256;
// CTAs of one long sequence: three for each SM of the largest devices.
inline constexpr std::int64_t kCtasOfSequence = 384;
inline constexpr int kMostChunksOfSequence = 64;
// Positions are counted in 32 bits, and sums of them and of the bounds of a window do not overflow.
inline constexpr std::int64_t kMostPosition = 1 << 28;

struct KeyChunks {
  IntRange keys;  // begins at a unit
  int step;
  int count;  // 1 where there are no keys

  constexpr IntRange operator[](int chunk) const {
    const int begin = keys.begin + chunk * step;
    return {begin, std::min(begin + step, keys.end)};
  }
};

constexpr int chunks_of_keys(int keys, int most) {
  return std::clamp((keys + kLeastChunk - 1) / kLeastChunk, 1, most);
}

// Not more than `most` chunks of keys that some query sees.
constexpr KeyChunks cut_keys(IntRange seen, int most) {
  const int begin = seen.begin / kCacheUnit * kCacheUnit;
  const int keys = std::max(seen.end - begin, 0);
  const int wanted = chunks_of_keys(keys, most);
  const int block = static_cast<int>(kCacheBlock);
  const int step = ((keys + wanted - 1) / wanted + block - 1) / block * block;
  return {{begin, begin + keys}, step, step == 0 ? 1 : (keys + step - 1) / step};
}

// The grid of an engine whose CTAs take `rows` rows of a group.
struct CacheGrid {
  int rows;
  int blocks;  // of the rows of a group
  int chunks;  // the most that a sequence has
  int most;    // the most that one may have

  std::int64_t ctas(const KvCacheProblem& p) const {
    return p.batch * p.kv_heads * blocks * chunks;
  }
};

inline CacheGrid grid_of(const KvCacheProblem& p, int rows) {
  const std::int64_t blocks = divide_up(p.group_rows(), rows);
  const std::int64_t one = 1;
  const std::int64_t most = std::clamp<std::int64_t>(
      kCtasOfSequence / std::max(p.kv_heads * blocks, one), 1, kMostChunksOfSequence);
  std::int64_t keys = p.capacity();
  if (p.window_left >= 0 && p.window_right >= 0) {
    keys = std::min(keys, p.window_left + p.window_right + p.queries);
  }
  return {rows, static_cast<int>(blocks),
          chunks_of_keys(static_cast<int>(keys) + kCacheUnit - 1, static_cast<int>(most)),
          static_cast<int>(most)};
}

}  // namespace transformer_kernels::cuda
