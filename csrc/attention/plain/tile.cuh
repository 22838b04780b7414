// SPDX-License-Identifier: MIT
// Products of tiles on CUDA cores, in accumulation precision. A CTA holds a square tile of scores:
// its own rows by the same number of other rows, queries by keys or keys by queries. Each thread
// owns a square of it, and the same places of every other product. Operands pass through shared
// memory kPlainDepth terms at a time, so that any head dim fits.
#pragma once

#include "attention/problem.h"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kPlainTile = 64;   // rows and columns of a tile
inline constexpr int kPlainOwned = 4;   // rows and columns that a thread owns
inline constexpr int kPlainDepth = 32;  // terms of a product between two visits to global memory
inline constexpr int kPlainStep = 8;    // terms without a test for the end
inline constexpr int kPlainThreadsPerRow = kPlainTile / kPlainOwned;
inline constexpr int kPlainThreads = kPlainThreadsPerRow * kPlainThreadsPerRow;
inline constexpr int kPlainWarps = kPlainThreads / kWarp;
// Rows of shared memory stand 4 banks apart: a warp that stores 4 rows by 8 terms, transposed,
// meets every bank once.
inline constexpr int kPlainPitch = kPlainTile + 4;

// The numbers of a tile that one thread owns.
template <class A>
using PlainSquare = A[kPlainOwned][kPlainOwned];

template <class A>
struct PlainShared {
  using Row = A[kPlainPitch];

  Row scores[kPlainTile];      // [column][row]
  Row terms[2 * kPlainDepth];  // of two operands

  __device__ Row* left() { return terms; }                 // [term][row]
  __device__ Row* right() { return terms + kPlainDepth; }  // [term][column]
  __device__ Row* weights() { return terms; }              // [column][row], between products
};

// The first row and column of this thread's square.
struct PlainThread {
  int row = static_cast<int>(threadIdx.x) / kPlainThreadsPerRow * kPlainOwned;
  int col = static_cast<int>(threadIdx.x) % kPlainThreadsPerRow * kPlainOwned;
};

// The rows of one head of one sequence.
template <class T>
struct PlainRows {
  T* data;
  std::int64_t stride;
  int rows;
  int cols;

  __device__ PlainRows(const HeadRows& all, int batch, std::int64_t first, int head,
                       std::int64_t count, std::int64_t dim)
      : data(static_cast<T*>(all.data) + batch * all.batch_stride + first * all.row_stride +
             head * all.head_stride),
        stride(all.row_stride),
        rows(static_cast<int>(count)),
        cols(static_cast<int>(dim)) {}

  __device__ __forceinline__ T* at(int row, int col) const { return data + row * stride + col; }
};

// target[d][r] = source[first + r][col + d], 0 outside. A warp reads 4 rows by 8 terms at a time.
template <class T>
__device__ __forceinline__ void stage_transposed(accumulate_t<T> (*target)[kPlainPitch],
                                                 const PlainRows<T>& source, int first, int col) {
  constexpr int kRounds = kPlainTile / (4 * kPlainWarps);
  constexpr int kBlocks = kPlainDepth / 8;
  const int row = static_cast<int>(threadIdx.x) / kWarp * 4 + static_cast<int>(threadIdx.x) % 4;
  const int term = static_cast<int>(threadIdx.x) % kWarp / 4;
  accumulate_t<T> value[kRounds][kBlocks] = {};
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int r = first + row + i * 4 * kPlainWarps;
    const T* const from = source.at(r, col + term);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      if (r < source.rows && col + term + 8 * j < source.cols) value[i][j] = widen(from[8 * j]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) target[term + 8 * j][row + i * 4 * kPlainWarps] = value[i][j];
  }
}

// target[d][c] = source[first + d][col + c], 0 outside.
template <class T>
__device__ __forceinline__ void stage(accumulate_t<T> (*target)[kPlainPitch],
                                      const PlainRows<T>& source, int first, int col) {
  constexpr int kRowsAtOnce = kPlainThreads / kPlainTile;
  constexpr int kRounds = kPlainDepth / kRowsAtOnce;
  const int row = static_cast<int>(threadIdx.x) / kPlainTile;
  const int c = static_cast<int>(threadIdx.x) % kPlainTile;
  const T* from = source.at(first + row, col + c);
  accumulate_t<T> value[kRounds] = {};
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    if (first + row + i * kRowsAtOnce < source.rows && col + c < source.cols)
      value[i] = widen(*from);
    from += kRowsAtOnce * source.stride;
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) target[row + i * kRowsAtOnce][c] = value[i];
}

template <class A>
struct alignas(16) PlainQuad {
  A of[kPlainOwned];
};

template <class A>
__device__ __forceinline__ PlainQuad<A> quad_at(const A* pointer) {
  return *reinterpret_cast<const PlainQuad<A>*>(pointer);
}

// sum[r][c] += sum over terms of left[term][row + r] * right[term][col + c]. The terms are summed
// beside the sum: long chains would lose digits. Both operands hold zeros up to the next step.
template <class A>
__device__ __forceinline__ void multiply_add(PlainSquare<A>& sum, const A (*left)[kPlainPitch],
                                             const A (*right)[kPlainPitch], int terms) {
  const PlainThread own;
  PlainSquare<A> part = {};
  for (int begin = 0; begin < terms; begin += kPlainStep) {
#pragma unroll
    for (int d = begin; d < begin + kPlainStep; ++d) {
      const PlainQuad<A> l = quad_at(&left[d][own.row]);
      const PlainQuad<A> r = quad_at(&right[d][own.col]);
#pragma unroll
      for (int i = 0; i < kPlainOwned; ++i) {
#pragma unroll
        for (int j = 0; j < kPlainOwned; ++j) part[i][j] += l.of[i] * r.of[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPlainOwned; ++i) {
#pragma unroll
    for (int j = 0; j < kPlainOwned; ++j) sum[i][j] += part[i][j];
  }
}

// product[r][c] = the dot product of rows left_first + row + r and right_first + col + c.
template <class T>
__device__ __forceinline__ void multiply_rows(PlainShared<accumulate_t<T>>& shared,
                                              const PlainRows<T>& left, int left_first,
                                              const PlainRows<T>& right, int right_first,
                                              PlainSquare<accumulate_t<T>>& product) {
#pragma unroll
  for (auto& row : product) {
#pragma unroll
    for (auto& value : row) value = 0;
  }
  for (int d = 0; d < left.cols; d += kPlainDepth) {
    __syncthreads();
    stage_transposed(shared.left(), left, left_first, d);
    stage_transposed(shared.right(), right, right_first, d);
    __syncthreads();
    multiply_add(product, shared.left(), shared.right(), min(kPlainDepth, left.cols - d));
  }
}

// This thread's square of a tile in shared memory, [column][row].
template <class A>
__device__ __forceinline__ void write_square(A (*tile)[kPlainPitch], const PlainSquare<A>& square) {
  const PlainThread own;
#pragma unroll
  for (int c = 0; c < kPlainOwned; ++c) {
    PlainQuad<A> column;
#pragma unroll
    for (int r = 0; r < kPlainOwned; ++r) column.of[r] = square[r][c];
    *reinterpret_cast<PlainQuad<A>*>(&tile[own.col + c][own.row]) = column;
  }
}

template <class A>
__device__ __forceinline__ void read_square(const A (*tile)[kPlainPitch], PlainSquare<A>& square) {
  const PlainThread own;
#pragma unroll
  for (int c = 0; c < kPlainOwned; ++c) {
    const PlainQuad<A> column = quad_at(&tile[own.col + c][own.row]);
#pragma unroll
    for (int r = 0; r < kPlainOwned; ++r) square[r][c] = column.of[r];
  }
}

// sum[g][r][c] += sum over the tile's columns j of score [row + r][j] *
// rows[first + j][first_col + kPlainTile * g + col + c], with scores from shared memory.
template <class T, int kGroups>
__device__ __forceinline__ void add_weighted_rows(PlainShared<accumulate_t<T>>& shared,
                                                  const PlainRows<T>& rows, int first,
                                                  int first_col,
                                                  PlainSquare<accumulate_t<T>> (&sum)[kGroups]) {
  const int count = min(kPlainTile, rows.rows - first);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int col = first_col + g * kPlainTile;
    if (col >= rows.cols) break;
    for (int j = 0; j < count; j += kPlainDepth) {
      __syncthreads();
      stage(shared.right(), rows, first + j, col);
      __syncthreads();
      multiply_add(sum[g], shared.scores + j, shared.right(), min(kPlainDepth, count - j));
    }
  }
}

// Writes what this thread owns of a result, times `factor(r)`.
template <class T, int kGroups, class Factor>
__device__ __forceinline__ void store_result(const PlainRows<T>& rows, int first, int first_col,
                                             const PlainSquare<accumulate_t<T>> (&sum)[kGroups],
                                             Factor&& factor) {
  const PlainThread own;
#pragma unroll
  for (int r = 0; r < kPlainOwned; ++r) {
    const int row = first + own.row + r;
    if (row >= rows.rows) break;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int c = 0; c < kPlainOwned; ++c) {
        const int col = first_col + g * kPlainTile + own.col + c;
        if (col < rows.cols) *rows.at(row, col) = narrow<T>(sum[g][r][c] * factor(r));
      }
    }
  }
}

}  // namespace transformer_kernels::cuda
