// SPDX-License-Identifier: MIT
// The plan by which the CUDA kernels of the backward pass divide their work. Host-only: tested
// without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/rounding.h"

namespace transformer_kernels::cuda {

inline constexpr int kEmbeddingRows = 4;  // of a thread of the forward pass

inline constexpr int kSumThreads = 256;  // of a CTA
inline constexpr int kSumCtas = 3;       // of a processor, at least: what registers allow
inline constexpr int kMostSumRows =
    16;                              // of the gradient, of a CTA; fewer than the lanes of a warp
inline constexpr int kSumPacks = 2;  // of a thread

// Sorted tokens have blocks of 32, 32^2 and 32^3 of them. A block whose tokens all have one index
// is summed once, by itself; a row of the gradient then adds the largest blocks that it covers, and
// of single tokens no more than 31 at either end. So no row, however many tokens it has, is one
// long chain of additions.
inline constexpr int kBlockBits = 5;
inline constexpr int kMostLevels = 3;

constexpr std::int64_t block_tokens(int level) { return std::int64_t{1} << (kBlockBits * level); }

// Levels of blocks: those of which there are some, or that a row has on average. A few blocks are
// no faster than their tokens.
constexpr int block_levels(std::int64_t tokens, std::int64_t rows) {
  constexpr std::int64_t kFewBlocks = 8;
  int levels = 0;
  while (levels < kMostLevels) {
    const std::int64_t next = block_tokens(levels + 1);
    if (tokens / next <= kFewBlocks && tokens / std::max<std::int64_t>(1, rows) < next) break;
    ++levels;
  }
  return levels;
}

// Neighbouring threads, a power of two, share a row of packs, kSumPacks each; a row of more than 32
// threads can take has several chunks.
struct RowChunks {
  int lane_bits;
  int chunks;

  constexpr int lanes() const { return 1 << lane_bits; }
};

constexpr RowChunks row_chunks(std::int64_t packs) {
  constexpr int kMostLaneBits = 5;
  int bits = 0;
  while (bits < kMostLaneBits && (std::int64_t{kSumPacks} << bits) < packs) ++bits;
  return {bits, static_cast<int>(std::max<std::int64_t>(1, divide_up(packs, kSumPacks << bits)))};
}

// Rows of a CTA: many, since each looks up its tokens first, but enough for its threads, and few
// enough that there are CTAs for all processors.
constexpr int sum_rows(std::int64_t rows, RowChunks row) {
  constexpr std::int64_t kEnoughCtas = 1024;
  const int groups = kSumThreads >> row.lane_bits;
  const std::int64_t least = std::clamp(groups / row.chunks, 1, kMostSumRows);
  return static_cast<int>(std::clamp<std::int64_t>(rows / kEnoughCtas, least, kMostSumRows));
}

// Up to so many tokens are sorted by counting, for each, those that go before it: the quadratic
// work takes all processors a few microseconds, while a radix sort waits for one launch after
// another.
inline constexpr std::int64_t kMostRankedTokens = 8192;

// Fewer tokens than rows leave most rows zeros. These need no sort: they are written beside it, and
// the sums then go over the sorted tokens instead of over the rows.
constexpr bool sums_go_over_tokens(std::int64_t tokens, std::int64_t rows) { return tokens < rows; }

// Sorted tokens of a CTA, whose rows it then owns.
constexpr int sum_places(std::int64_t tokens) {
  constexpr std::int64_t kEnoughCtas = 1024;
  constexpr std::int64_t kLeast = 8;
  return static_cast<int>(std::clamp<std::int64_t>(tokens / kEnoughCtas, kLeast, kMostSumRows));
}

// Bytes that a CTA clears.
inline constexpr std::int64_t kClearBytes = 64 * 1024;

// Bits of the largest of the numbers 0 to `rows`: of what is sorted.
constexpr int index_bits(std::int64_t rows) {
  int bits = 1;
  while (bits < 32 && rows >> bits != 0) ++bits;
  return bits;
}

}  // namespace transformer_kernels::cuda
