// SPDX-License-Identifier: MIT
// Common: what the kernels of attention over a cache share. This file has the place of a token in
// the cache, rows of q and of new tokens after their rotation, and the step from sums to results.
//
// A kernel cannot refuse: a length or an entry of a table that does not fit makes tokens that have
// no place. Such are neither written nor seen.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>

#include "attention/decode/engine.h"
#include "core/cuda/exponent.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

// Below every score that counts; not -inf, of which differences are NaN.
inline constexpr float kNoScore = -FLT_MAX;

__device__ __forceinline__ int length_of(const KvCacheProblem& p, int batch) {
  std::int64_t length = p.capacity() - p.added;
  if (p.lengths != nullptr) {
    length = p.lengths[batch];
  } else if (p.long_lengths != nullptr) {
    length = p.long_lengths[batch];
  }
  return static_cast<int>(
      length < -kMostPosition ? -kMostPosition : (length > kMostPosition ? kMostPosition : length));
}

// The keys that queries of a sequence see, after new tokens were added to `length`.
__device__ __forceinline__ Band band_of(const KvCacheProblem& p, int length) {
  const int total = length + static_cast<int>(p.added);
  const int capacity = static_cast<int>(p.capacity());
  return {total - static_cast<int>(p.queries), bound_of(p.window_left), bound_of(p.window_right),
          total < capacity ? total : capacity};
}

__device__ __forceinline__ KeyChunks chunks_of(const KvCacheProblem& p, const Band& band,
                                               int most) {
  return cut_keys(band.seen_by_any(0, static_cast<int>(p.queries) - 1), most);
}

// A page, or -1 where there is none.
__device__ __forceinline__ int checked_page(const KvCacheProblem& p, int entry) {
  return entry >= 0 && entry < p.pages ? entry : -1;
}

__device__ __forceinline__ int page_of(const KvCacheProblem& p, int batch, int index) {
  return p.table == nullptr ? batch : checked_page(p, p.table[batch * p.table_stride + index]);
}

// Where a CTA works.
struct CacheWork {
  int batch;
  int kv_head;
  int block;
  int chunk;

  // CTAs that follow each other read the same tokens: other heads, which may lie beside each other,
  // and other rows of the group.
  static __device__ __forceinline__ CacheWork of(const KvCacheProblem& p, const CacheGrid& grid,
                                                 unsigned cta) {
    const auto heads = static_cast<unsigned>(p.kv_heads);
    const auto blocks = static_cast<unsigned>(grid.blocks);
    const auto chunks = static_cast<unsigned>(grid.chunks);
    return {static_cast<int>(cta / heads / blocks / chunks), static_cast<int>(cta % heads),
            static_cast<int>(cta / heads % blocks),
            static_cast<int>(cta / heads / blocks % chunks)};
  }
};

// A row of the group: query `row % queries` of its head `row / queries`.
struct GroupRow {
  int head;
  int query;

  static __device__ __forceinline__ GroupRow of(const KvCacheProblem& p, int kv_head, int row) {
    const int queries = static_cast<int>(p.queries);
    const int group = static_cast<int>(p.heads / p.kv_heads);
    return {kv_head * group + row / queries, row % queries};
  }
};

// A lane's numbers of a row: columns lane, lane + 32, .. of those below `dim`; others are 0.
template <class T, int kColumns>
__device__ __forceinline__ void load_row(const T* row, int dim, float (&number)[kColumns]) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
    number[i] = column < dim ? widen(row[column]) : 0;
  }
}

// Turns a lane's numbers of a row by cosines and sines of type W, which begin at `cos` and `sin`.
template <class T, class W, int kColumns>
__device__ __forceinline__ void turn_row(const KvCacheProblem& p, const T* row, const W* cos,
                                         const W* sin, float (&number)[kColumns]) {
  const int pairs = static_cast<int>(p.frequencies);
  float other[kColumns];
  float along[kColumns];
  float across[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
    const bool second = p.interleaved ? column % 2 != 0 : column >= pairs;
    const int step = p.interleaved ? 1 : pairs;
    const int pair = p.interleaved ? column / 2 : (second ? column - pairs : column);
    const bool turns = column < 2 * pairs;
    other[i] = turns ? widen(row[second ? column - step : column + step]) : 0;
    along[i] = turns ? static_cast<float>(widen(cos[pair])) : 1;
    across[i] = turns ? static_cast<float>(widen(sin[pair])) : 0;
    if (!second) across[i] = -across[i];
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) number[i] = fmaf(number[i], along[i], other[i] * across[i]);
}

// Rotates a lane's numbers of a row to `position`: NaN where the tables lack it.
template <class T, int kColumns>
__device__ __forceinline__ void rotate_row(const KvCacheProblem& p, const T* row, int position,
                                           float (&number)[kColumns]) {
  if (p.frequencies == 0) return;
  if (position < 0 || position >= p.positions) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      if (column < 2 * p.frequencies) number[i] = __int_as_float(0x7fffffff);
    }
    return;
  }
  const std::int64_t cos = position * p.cos.stride;
  const std::int64_t sin = position * p.sin.stride;
  if (p.cos.dtype == DType::kFloat32) {
    turn_row(p, row, static_cast<const float*>(p.cos.data) + cos,
             static_cast<const float*>(p.sin.data) + sin, number);
  } else {
    turn_row(p, row, static_cast<const T*>(p.cos.data) + cos,
             static_cast<const T*>(p.sin.data) + sin, number);
  }
}

template <class T>
__device__ __forceinline__ const T* row_at(const HeadRows& rows, int batch, int row, int head) {
  return static_cast<const T*>(rows.data) + batch * rows.batch_stride + row * rows.row_stride +
         head * rows.head_stride;
}

// The largest score and the sum of weights of a row that has seen all its keys, and of its sink.
template <class E>
struct RowTotal {
  float top;
  float factor;   // of sums to `top`
  float inverse;  // of all weights; 0 where there are none
  float lse;

  static __device__ __forceinline__ RowTotal of(const KvCacheProblem& p, int head, float top,
                                                float sum) {
    RowTotal total{top, 1, 0, 0};
    if (p.sinks.data != nullptr) {
      const float sink = p.sinks.at<float>(0, head, 0.0f) * E::kPerNatural;
      total.top = fmaxf(top, sink);
      total.factor = E::power(top - total.top);
      sum = sum * total.factor + E::power(sink - total.top);
    }
    if (sum == 0) {
      total.lse = -INFINITY;
      return total;
    }
    total.inverse = total.factor / sum;
    total.lse = (total.top + E::log(sum)) * E::kNatural;
    return total;
  }
};

__device__ __forceinline__ void store_lse(const KvCacheProblem& p, int batch, GroupRow row,
                                          float lse) {
  if (p.lse == nullptr) return;
  p.lse[(batch * p.heads + row.head) * p.queries + row.query] = lse;
}

template <class T>
__device__ __forceinline__ void store_out(const KvCacheProblem& p, int batch, GroupRow row,
                                          int column, float value) {
  static_cast<T*>(p.out.data)[batch * p.out.batch_stride + row.query * p.out.row_stride +
                              row.head * p.out.head_stride + column] = narrow<T>(value);
}

// Parts of rows of a group, of one chunk.
__device__ __forceinline__ std::int64_t part_row(const KvCacheProblem& p, const CacheGrid& grid,
                                                 int batch, int kv_head, int chunk, int row) {
  const auto rows = static_cast<std::int64_t>(p.group_rows());
  return ((batch * p.kv_heads + kv_head) * grid.chunks + chunk) * rows + row;
}

}  // namespace transformer_kernels::cuda
