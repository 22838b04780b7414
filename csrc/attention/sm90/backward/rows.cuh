// SPDX-License-Identifier: MIT
// The kernels before and after the backward kernel on Hopper, one CTA for each block of queries of
// a head: the first computes the statistics of queries, the last converts dq to its dtype.
// Neighbouring CTAs have neighbouring heads of the same rows.
#pragma once

#include "attention/common/row_gradients.cuh"
#include "attention/sm90/backward/geometry.h"
#include "core/cuda/mma.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/ptx.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kRowThreads = 256;

// A block of queries of one head, for a CTA of kRowThreads.
struct QueryBlock {
  int head;
  int block;    // within its sequence
  int batch;    // of the tensors
  int queries;  // of the sequence
  int q_begin;
  std::int64_t place;  // among the blocks of all heads

  __device__ explicit QueryBlock(const BackwardGeometry& geometry) {
    const int number = static_cast<int>(blockIdx.x);
    const int of_head = number / geometry.heads % geometry.query_blocks;
    head = number % geometry.heads;
    batch = number / geometry.heads / geometry.query_blocks;
    place = geometry.block_place(batch, head, of_head);
    block = of_head;
    queries = geometry.queries;
    q_begin = 0;
    if (geometry.q_offsets != nullptr) {
      const RowBlocks::Place at = geometry.blocks_of_queries()[of_head];
      block = at.first / kBlockQueries;
      q_begin = geometry.q_offsets[at.batch];
      queries = geometry.q_offsets[at.batch + 1] - q_begin;
    }
  }
  __device__ int query(int row) const { return block * kBlockQueries + row; }
  __device__ bool exists(int row) const { return query(row) < queries; }

  template <class T>
  __device__ T* address(const HeadRows& rows, int row, int column) const {
    return static_cast<T*>(rows.data) + batch * rows.batch_stride +
           (q_begin + query(row)) * rows.row_stride + head * rows.head_stride + column;
  }
};

// Threads that share a row of a block have a vector of eight columns each; they are a power of two.
template <int kDim>
struct RowThreads {
  static constexpr int kLanes = kDim > 128 ? 32 : kDim / 8;
  static constexpr int kStep = kRowThreads / kLanes;
  static constexpr int kRounds = kBlockQueries / kStep;

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ int column() { return lane() * 8; }
  static __device__ int row(int round) {
    return static_cast<int>(threadIdx.x) / kLanes + round * kStep;
  }
};

static_assert(kBlockQueries == kStatisticsBlock);

// Where row `row` of a block stands among its statistics: a thread of the kernel wants columns 8 i
// + 2 (lane % 4) and the next, and gets those of two i as 16 bytes.
constexpr int statistic_place(int row) {
  return row / 16 * 16 + row / 2 % 4 * 4 + row / 8 % 2 * 2 + row % 2;
}

// Whether a row of a block is far is told by the last bit of the block's first -delta, for which
// that is next to nothing: the kernel asks once a block.
constexpr int kFarWord = kBlockQueries;
__device__ __forceinline__ float with_last_bit(float v, bool bit) {
  return __int_as_float((__float_as_int(v) & ~1) | (bit ? 1 : 0));
}

struct BackwardPrologue {
  AttentionBackwardProblem problem;
  BackwardGeometry geometry;
  float* statistics;
  float* dq;    // sums, to be cleared
  bool stores;  // the first tile of a block stores its sums, and adds them to nothing
  int* next_tile;
  int* tiles_added;  // may be null
  int slices;        // of tiles_added in a block
  float shrunk_by;   // what delta is multiplied with
};

// Statistics of a row that sees no key, or lies past the end, have an infinite origin, which makes
// its P 0.
template <class T, int kDim>
__global__ void __launch_bounds__(kRowThreads)
    backward_prologue_kernel(const __grid_constant__ BackwardPrologue a) {
  using P = Pack<T, 8>;
  using Threads = RowThreads<kDim>;
  const AttentionBackwardProblem& p = a.problem;
  let_next_kernel_start();
  const QueryBlock at(a.geometry);

  uint4 out[Threads::kRounds] = {}, dout[Threads::kRounds] = {};
#pragma unroll
  for (int i = 0; i < Threads::kRounds; ++i) {
    const int row = Threads::row(i);
    const int column = Threads::column();
    if (!at.exists(row) || column >= p.value_dim) continue;
    out[i] = P::load(at.address<T>(p.out, row, column));
    dout[i] = P::load(at.address<T>(p.dout, row, column));
  }
  if (!a.stores || !a.geometry.has_tile(at.block)) {
    float4* const sums = reinterpret_cast<float4*>(a.dq + at.place * (kDim * kBlockQueries));
#pragma unroll
    for (int i = 0; i < kDim * kBlockQueries / 4 / kRowThreads; ++i) {
      sums[threadIdx.x + i * kRowThreads] = make_float4(0, 0, 0, 0);
    }
  }
  if (a.tiles_added != nullptr && threadIdx.x < a.slices) {
    a.tiles_added[at.place * a.slices + threadIdx.x] = 0;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.next_tile = 0;

  float* const statistics = a.statistics + at.place * (2 * kBlockQueries);
  bool far = false;
#pragma unroll
  for (int i = 0; i < Threads::kRounds; ++i) {
    float x[8], y[8];
    P::unpack(out[i], x);
    P::unpack(dout[i], y);
    float delta = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) delta = fmaf(x[k], y[k], delta);
    delta = reduce_lanes<Add, Threads::kLanes>(delta);
    if (Threads::lane() != 0) continue;
    const int of_block = Threads::row(i);
    RowStatistics<float> row{INFINITY, delta};
    if (at.exists(of_block)) {
      const std::int64_t place =
          (static_cast<std::int64_t>(at.batch) * a.geometry.heads + at.head) * a.geometry.queries +
          at.q_begin + at.query(of_block);
      row = statistics_of<T>(p, place, delta);
    }
    far = far || is_far(row.origin);
    statistics[statistic_place(of_block)] = row.origin;
    statistics[kBlockQueries + statistic_place(of_block)] = -row.delta * a.shrunk_by;
  }
  far = __syncthreads_or(far);
  // The first row's is this thread's.
  if (threadIdx.x == 0) statistics[kFarWord] = with_last_bit(statistics[kFarWord], far);
}

struct BackwardEpilogue {
  BackwardGeometry geometry;
  const float* sums;
  HeadRows dq;
  int dim;
  int slabs;  // of 64 columns
  float scale;
};

// Transposes four words of each of the four lanes of a quad.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&words)[4], int lane) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = lane & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      std::uint32_t& own = upper ? words[i] : words[i + step];
      own = __shfl_xor_sync(kAllLanes, own, step);
    }
  }
}

// Eight columns of a row of dq, where they exist.
template <class T>
__device__ __forceinline__ void store_dq(const BackwardEpilogue& a, const QueryBlock& at, int row,
                                         int column, const std::uint32_t (&words)[4]) {
  if (column >= a.dim || !at.exists(row)) return;
  Pack<T, 8>::store(at.address<T>(a.dq, row, column),
                    make_uint4(words[0], words[1], words[2], words[3]));
}

// Sums lie as wgmma leaves them: slabs of 64 columns, then 16 rows of a warp, then 8 columns, then
// a lane's four: two columns of a row and of that 8 below. A warp takes 16 rows, and of each slab
// 32 columns; its quads rearrange their loads into eight columns a lane. A kernel serves two
// numbers of slabs: where there is no slab, nothing is read.
template <class T, int kMostSlabs>
__global__ void __launch_bounds__(kRowThreads)
    backward_epilogue_kernel(const __grid_constant__ BackwardEpilogue a) {
  const QueryBlock at(a.geometry);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int rows = warp / 2;
  const int half = warp % 2;
  wait_for_previous_kernel();
  const float4* const from = reinterpret_cast<const float4*>(a.sums) +
                             at.place * (a.slabs * kBlockQueries * 64 / 4) + rows * 256 +
                             half * 128 + lane;
  float4 sums[kMostSlabs][4];
#pragma unroll
  for (int i = 0; i < kMostSlabs; ++i) {
    if (i >= a.slabs) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] = from[i * 1024 + j * 32];
  }
#pragma unroll
  for (int i = 0; i < kMostSlabs; ++i) {
    if (i >= a.slabs) break;
    std::uint32_t upper[4], lower[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 v = sums[i][j];
      const float pairs[4] = {v.x * a.scale, v.y * a.scale, v.z * a.scale, v.w * a.scale};
      upper[j] = narrow_word<T>(pairs);
      lower[j] = narrow_word<T>(pairs + 2);
    }
    transpose_quad(upper, lane);
    transpose_quad(lower, lane);
    const int row = 16 * rows + lane / 4;
    const int column = 64 * i + 32 * half + lane % 4 * 8;
    store_dq<T>(a, at, row, column, upper);
    store_dq<T>(a, at, row + 8, column, lower);
  }
}

// dq from sums of dQ^T, of 64 columns: 16 columns of a warp, then 8 rows, then a lane's four:
// two rows of a column and of that 8 further. A warp takes 8 rows, whose 8x8 matrices it
// transposes.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    backward_transposed_epilogue_kernel(const __grid_constant__ BackwardEpilogue a) {
  const QueryBlock at(a.geometry);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  wait_for_previous_kernel();
  const float4* const from = reinterpret_cast<const float4*>(a.sums) +
                             at.place * (64 * kBlockQueries / 4) + warp * 32 + lane;
  float4 sums[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = from[i * 256];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    std::uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 v = sums[2 * i + j];
      const float pairs[4] = {v.x * a.scale, v.y * a.scale, v.z * a.scale, v.w * a.scale};
      words[2 * j] = movmatrix_trans(narrow_word<T>(pairs));
      words[2 * j + 1] = movmatrix_trans(narrow_word<T>(pairs + 2));
    }
    transpose_quad(words, lane);
    store_dq<T>(a, at, 8 * warp + lane / 4, 32 * i + lane % 4 * 8, words);
  }
}

}  // namespace transformer_kernels::cuda
