// SPDX-License-Identifier: MIT
// The plan by which the CUDA kernels divide their work. Host-only: tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/rounding.h"

namespace transformer_kernels::cuda {

inline constexpr int kGraphThreads = 128;  // of a CTA
// CTAs of a processor, at least: what registers allow without spills.
inline constexpr int kGraphCtas = 4;

// Neighbouring threads, a power of two and a pack each, share a row; a row of more packs than a
// warp has threads is cut into chunks.
struct RowLanes {
  int bits;
  int chunks;

  constexpr int count() const { return 1 << bits; }
};
constexpr RowLanes row_lanes(std::int64_t packs) {
  int bits = 0;
  while (bits < 5 && (std::int64_t{1} << bits) < packs) ++bits;
  return {bits, static_cast<int>(std::max<std::int64_t>(1, divide_up(packs, 1 << bits)))};
}

// A segment of more edges is cut into pieces, whose results are merged in turn: one of millions
// then is no single chain. Which these are only the device knows; the host knows how many there can
// be at most.
inline constexpr std::int64_t kLongSegment = 512;  // edges, at most, in one go
inline constexpr std::int64_t kPiece = 256;

constexpr std::int64_t most_long_segments(std::int64_t edges) { return edges / (kLongSegment + 1); }
constexpr std::int64_t most_pieces(std::int64_t edges) {
  return edges / kPiece + most_long_segments(edges);
}

// Sums of rows in order: loads of a thread under way, in batches, each of which waits for its turn.
inline constexpr int kSumRows = 4;
inline constexpr int kSumBatches = 2;
// CTAs of a processor: what registers allow without spills.
constexpr int sum_ctas(std::size_t element_bytes) { return element_bytes == 2 ? 7 : 8; }
// Neighbouring segments that the threads of a row own, one where there are not enough for more.
constexpr int segments_of_row(std::int64_t threads, int processors) {
  constexpr std::int64_t kMost = 4;
  constexpr std::int64_t kThreads = 1024;  // of a processor
  return static_cast<int>(std::clamp<std::int64_t>(threads / (kThreads * processors), 1, kMost));
}

// The columns, and the strips of pieces, of a CTA that merges pieces.
inline constexpr int kMergeCols = 32;
inline constexpr int kMergeStrips = kGraphThreads / kMergeCols;

// Work on edges: a CTA has a run of neighbouring items, edges or heads of them, and fewer where
// there are not enough for all processors. To look a run up takes as long as to work off a few
// hundred of them.
inline constexpr int kRunThreads = 256;
inline constexpr int kRunItems = 512;
inline constexpr int kProducts = 4;  // of a thread, whose rows are under way together
inline constexpr int kSpread = 4;
// CTAs of a processor: what registers allow without spills.
constexpr int product_ctas(int pack_size, std::size_t element_bytes) {
  return pack_size > 1 ? 4 : element_bytes == 8 ? 2 : 3;
}
inline constexpr int kSpreadCtas = 4;

constexpr int run_items(std::int64_t items, int processors) {
  constexpr int kFewest = 32;
  int of_run = kRunItems;
  while (of_run > kFewest && items < std::int64_t{of_run} * kSpreadCtas * processors) of_run /= 2;
  return of_run;
}

// Softmax: threads of a segment, a power of two up to a warp; `width` of them, a power of two, are
// side by side in its columns, a pack each. They are as few as hold a segment one and a half times
// as long as the average in their registers, because the threads of a segment have to merge their
// results.
struct SoftmaxLanes {
  int bits;
  int width_bits;
};
inline constexpr int kSoftmaxKept = 6;  // packs of x of a thread
constexpr SoftmaxLanes softmax_lanes(std::int64_t edges, std::int64_t segments,
                                     std::int64_t packs) {
  int width_bits = 0;
  while (width_bits < 5 && (std::int64_t{1} << width_bits) < packs) ++width_bits;
  const std::int64_t average = divide_up(edges, std::max<std::int64_t>(1, segments));
  int bits = width_bits;
  while (bits < 5 && (std::int64_t{2 * kSoftmaxKept} << bits) < 3 * average << width_bits) ++bits;
  return {bits, width_bits};
}
// CTAs of a processor: what registers allow without spills.
constexpr int softmax_ctas(int pack_size, bool backward, std::size_t element_bytes) {
  if (element_bytes == 8) return kGraphCtas;
  return pack_size == 1 ? 6 : backward ? 5 : pack_size == 4 ? 8 : 5;
}
inline constexpr std::int64_t kLongSoftmax = 2048;  // edges of a segment that a CTA takes alone
inline constexpr int kLongSoftmaxBits = 9;          // of the number of its threads
inline constexpr int kLongSoftmaxThreads = 1 << kLongSoftmaxBits;

}  // namespace transformer_kernels::cuda
