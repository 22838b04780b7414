// SPDX-License-Identifier: MIT
// The building blocks of both passes of the tensor-core engine. Each of its kernels is one walk: a
// CTA owns a block of rows of one side (queries or keys), keeps them in shared memory, and streams
// the other side past them in tiles, two stages deep. A warp owns 16 or 32 of the rows; products of
// its rows and a tile of columns stay in its registers, where they are the left operand of the next
// product. So warps share only the operands that they read.
#pragma once

#include "attention/problem.h"
#include "attention/sm80/plan.h"
#include "core/cuda/occupancy.h"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/sm80/fragment.cuh"
#include "core/cuda/sm80/rows.cuh"
#include "core/row_blocks.h"

namespace transformer_kernels::cuda {

// ---------------------------------------------------------------------------- registers

// CTAs that the registers leave room for on one SM. Float32, with twice the words of an operand,
// has two; 0 leaves it to the compiler, which for sm_120 would rather spill than make do with one.
template <class T>
inline constexpr int kForwardCtas = sizeof(T) == 4 ? 2 : 0;
template <class T>
inline constexpr int kBackwardCtas = sizeof(T) == 4 ? 2 : (kArchitecture >= 120 ? 1 : 0);

// ---------------------------------------------------------------------------- where a CTA stands

// The block of rows of one head that a CTA owns. Neighbouring CTAs share a head, and with it the
// other side in L2; the last blocks, which see most under a causal mask, come first.
struct OwnBlock {
  int head;
  int batch;
  int first;  // row, from the begin of its sequence

  OwnBlock() = default;
  __device__ explicit OwnBlock(const RowBlocks& blocks) {
    const int count = static_cast<int>(blocks.count());
    const int index = static_cast<int>(blockIdx.x);
    head = index / count;
    const RowBlocks::Place place = blocks[count - 1 - index % count];
    batch = place.batch;
    first = place.first;
  }
};

constexpr RowBlocks query_blocks(const AttentionProblem& p, int size) {
  return {p.q_offsets, p.batch, p.queries, size};
}
constexpr RowBlocks key_blocks(const AttentionProblem& p, int size) {
  return {p.k_offsets, p.batch, p.keys, size};
}

// The walk of a CTA with kRows rows past the other side, kCols at a time. It waits in shared
// memory: registers are scarcer.
struct Walk {
  OwnBlock at;
  int rows;  // own ones of this sequence
  Band band;
  int first_tile;  // of those that one of the rows sees
  int end_tile;
  int first_common;  // column of those that all rows see
  int end_common;

  template <int kRows, int kCols>
  __device__ void begin(const OwnBlock& block, std::int64_t own_rows, const Band& seen) {
    at = block;
    rows = static_cast<int>(own_rows);
    band = seen;
    const int last = min(at.first + kRows, rows) - 1;
    first_tile = band.begin(at.first) / kCols;
    end_tile = (band.end(last) + kCols - 1) / kCols;
    first_common = band.begin(last);
    end_common = band.end(at.first);
  }

  // Whether all rows see all of these columns.
  __device__ __forceinline__ bool all_seen(int first, int count) const {
    return first >= first_common && first + count <= end_common;
  }
  __device__ __forceinline__ bool sees(int row, int col) const {
    return row < rows && col >= band.begin(row) && col < band.end(row);
  }
};

// ---------------------------------------------------------------------------- global memory

// Rows of one head from `first_row` on.
template <class T>
__device__ GlobalRows<T> rows_of_head(const HeadRows& rows, int batch, std::int64_t first_row,
                                      int head, std::int64_t dim) {
  constexpr int kElementBytes = GlobalRows<T>::kElementBytes;
  return {static_cast<char*>(rows.data) +
              kElementBytes * (batch * rows.batch_stride + first_row * rows.row_stride +
                               head * rows.head_stride),
          kElementBytes * rows.row_stride, static_cast<int>(dim)};
}

}  // namespace transformer_kernels::cuda
