// SPDX-License-Identifier: MIT
// What both passes of the tensor-core engine are made of. Each of its kernels is one walk: a CTA
// owns a block of rows of one side (queries or keys), keeps them in shared memory, and streams the
// other side past them in tiles, two stages deep. A warp owns 16 or 32 of the rows; products of
// its rows and a tile of columns stay in its registers, from where they are the left operand of the
// next product. So warps share nothing but what is read.
#pragma once

#include "attention/attention_problem.h"
#include "attention/row_blocks.h"
#include "attention/tensor_core_plan.h"
#include "core/cuda/mma.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

// ---------------------------------------------------------------------------- registers

// CTAs that the registers leave room for on one SM. Float32, with twice the words of an operand,
// has two; 0 leaves it to the compiler, which for sm_100 and later would rather spill than make do
// with one.
template <class T>
inline constexpr int kForwardCtas = sizeof(T) == 4 ? 2 : 0;
template <class T>
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
inline constexpr int kBackwardCtas = sizeof(T) == 4 ? 2 : 1;
#else
inline constexpr int kBackwardCtas = sizeof(T) == 4 ? 2 : 0;
#endif

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

// Columns that rows see by their place: row r sees r + shift - back to r + shift + ahead.
struct Band {
  static constexpr int kUnbounded = 1 << 30;  // lengths are below kMostTensorCoreLength

  int shift;
  int back;
  int ahead;
  int columns;

  // Rows are queries, columns keys.
  static __device__ Band of_queries(const AttentionProblem& p, const Sequence& s) {
    return {p.bottom_right ? static_cast<int>(s.keys - s.queries) : 0, bound(p.window_left),
            bound(p.window_right), static_cast<int>(s.keys)};
  }
  static __device__ Band of_keys(const AttentionProblem& p, const Sequence& s) {
    return {p.bottom_right ? static_cast<int>(s.queries - s.keys) : 0, bound(p.window_right),
            bound(p.window_left), static_cast<int>(s.queries)};
  }
  static __device__ int bound(std::int64_t window) {
    return window < 0 || window > kUnbounded ? kUnbounded : static_cast<int>(window);
  }

  __device__ __forceinline__ int begin(int row) const {
    return min(max(row + shift - back, 0), columns);
  }
  __device__ __forceinline__ int end(int row) const {
    return min(max(row + shift + ahead + 1, 0), columns);
  }
};

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

// ---------------------------------------------------------------------------- shared memory

// Rows of kDim elements. The 16-byte pieces of a row are permuted within spans of 128 (64) bytes,
// so that the same piece of 8 neighbouring rows lies in different banks.
template <class T, int kDim>
struct SharedRows {
  static constexpr int kPitch = kDim * static_cast<int>(sizeof(T));
  static constexpr int kPieces = kPitch / 16;
  static constexpr int kSpan = kPitch % 128 == 0 ? 128 : 64;
  static_assert(kPitch % kSpan == 0);

  static __device__ __forceinline__ int offset(int row, int piece) {
    const int permutation = kSpan == 128 ? row & 7 : row >> 1 & 3;
    return row * kPitch + (piece ^ permutation) * 16;
  }
  // `bytes`, a multiple of 32, further along a row than `address`, which lies in its first 32.
  static __device__ __forceinline__ std::uint32_t along(std::uint32_t address, int bytes) {
    return (address ^ bytes % kSpan) + bytes / kSpan * kSpan;
  }
};

// Rows of one head in global memory.
template <class T>
struct GlobalRows {
  static constexpr int kElementBytes = sizeof(T);
  static constexpr int kPerPiece = 16 / kElementBytes;

  char* data;
  std::int64_t stride;  // bytes
  int dim;

  GlobalRows() = default;
  __device__ GlobalRows(const HeadRows& rows, int batch, std::int64_t first_row, int head,
                        std::int64_t dim)
      : data(static_cast<char*>(rows.data) +
             kElementBytes * (batch * rows.batch_stride + first_row * rows.row_stride +
                              head * rows.head_stride)),
        stride(kElementBytes * rows.row_stride),
        dim(static_cast<int>(dim)) {}
};

// Starts to copy rows [first, first + kRows) of which those from `end` on, like columns past the
// head dim, become zeros.
template <int kDim, int kRows, int kThreads, class T>
__device__ __forceinline__ void copy_rows(std::uint32_t target, const GlobalRows<T>& from,
                                          int first, int end) {
  using Rows = SharedRows<T, kDim>;
  constexpr int kStep = kThreads / Rows::kPieces;  // rows at once
  static_assert(kThreads % Rows::kPieces == 0 && kRows % kStep == 0);
  const int row = static_cast<int>(threadIdx.x) / Rows::kPieces;
  const int piece = static_cast<int>(threadIdx.x) % Rows::kPieces;
  const int rows = piece * GlobalRows<T>::kPerPiece < from.dim ? end - first - row : 0;
  const char* source = from.data + (first + row) * from.stride + piece * 16;
#pragma unroll
  for (int i = 0; i < kRows; i += kStep) {
    cp_async<16>(target + Rows::offset(row + i, piece), source, i < rows);
    source += kStep * from.stride;
  }
}

// ---------------------------------------------------------------------------- fragments

// A warp's block of a product: kRows / 16 by kCols / 8 results of mma.
template <int kRows, int kCols>
struct Fragment {
  static constexpr int kTiles = kRows / 16;
  static constexpr int kSteps = kCols / 8;

  float at[kTiles][kSteps][4];

  __device__ __forceinline__ void clear() {
    for_each([](float& value, int, int) { value = 0; });
  }
  __device__ __forceinline__ float& operator()(int slot, int col) {
    return at[slot / 2][col / 8][slot % 2 * 2 + col % 2];
  }
  // All but the first step's columns move one step to the front.
  __device__ __forceinline__ void shift() {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 1; n < kSteps; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) at[m][n - 1][e] = at[m][n][e];
      }
    }
  }
  // body(element, its row slot, its column); the lane's own rows and columns come on top, see Lane.
  template <class Body>
  __device__ __forceinline__ void for_each(Body&& body) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) body(at[m][n][e], 2 * m + e / 2, n * 8 + e % 2);
      }
    }
  }
};

// Which rows and columns of a fragment a lane has.
struct Lane {
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int warp = static_cast<int>(threadIdx.x) / kWarp;

  __device__ __forceinline__ int row(int slot) const { return slot * 8 + lane / 4; }
  __device__ __forceinline__ int col() const { return lane % 4 * 2; }
};

}  // namespace transformer_kernels::cuda
