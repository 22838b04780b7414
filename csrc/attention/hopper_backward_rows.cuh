// SPDX-License-Identifier: MIT
// Before and after the backward kernel on Hopper, one CTA for each block of queries of a head: what
// the kernel reads beside a query, and dq in its own dtype. Neighbouring CTAs have neighbouring
// heads of the same rows.
#pragma once

#include "attention/attention_problem.h"
#include "attention/hopper_backward_plan.h"
#include "core/cuda/exponent.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/ptx.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kRowThreads = 256;

// A block of queries of one head, for a CTA of kRowThreads. Threads that share a row have a vector
// of eight columns each; they are a power of two.
template <int kDim>
struct QueryBlock {
  static constexpr int kLanes = kDim > 128 ? 32 : kDim / 8;
  static constexpr int kStep = kRowThreads / kLanes;
  static constexpr int kRounds = kBlockQueries / kStep;

  int head;
  int block;    // within its sequence
  int batch;    // of the tensors
  int queries;  // of the sequence
  int q_begin;
  std::int64_t place;  // among the blocks of all heads

  __device__ explicit QueryBlock(const HopperBackwardPlan& plan) {
    const int number = static_cast<int>(blockIdx.x);
    const int of_head = number / plan.heads % plan.query_blocks;
    head = number % plan.heads;
    batch = number / plan.heads / plan.query_blocks;
    place = plan.block_place(batch, head, of_head);
    block = of_head;
    queries = plan.queries;
    q_begin = 0;
    if (plan.q_offsets != nullptr) {
      const RowBlocks::Place at = plan.blocks_of_queries()[of_head];
      block = at.first / kBlockQueries;
      q_begin = plan.q_offsets[at.batch];
      queries = plan.q_offsets[at.batch + 1] - q_begin;
    }
  }
  __device__ int column() const { return static_cast<int>(threadIdx.x) % kLanes * 8; }
  __device__ int row(int round) const {
    return static_cast<int>(threadIdx.x) / kLanes + round * kStep;
  }
  __device__ int query(int round) const { return block * kBlockQueries + row(round); }
  __device__ bool exists(int round) const { return query(round) < queries; }

  template <class T>
  __device__ T* address(const HeadRows& rows, int round) const {
    return static_cast<T*>(rows.data) + batch * rows.batch_stride +
           (q_begin + query(round)) * rows.row_stride + head * rows.head_stride + column();
  }
};

// Where row `row` of a block stands among its statistics: a thread of the kernel wants columns 8 i
// + 2 (lane % 4) and the next, and gets those of two i as 16 bytes.
constexpr int statistic_place(int row) {
  return row / 16 * 16 + row / 2 % 4 * 4 + row / 8 % 2 * 2 + row % 2;
}

struct BackwardPrologue {
  AttentionBackwardProblem problem;
  HopperBackwardPlan plan;
  float* statistics;
  float* dq;  // sums, to be cleared
  int* next_tile;
  int* tiles_added;  // may be null
  int shares;        // of tiles_added in a block
};

// delta = sum(out * dout) - dlse. A row that sees no key, or lies past the end, gets an infinite
// lse, which makes its P 0.
template <class T, int kDim>
__global__ void __launch_bounds__(kRowThreads)
    backward_prologue_kernel(const __grid_constant__ BackwardPrologue a) {
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
  using P = Pack<T, 8>;
  using Block = QueryBlock<kDim>;
  const AttentionBackwardProblem& p = a.problem;
  let_next_kernel_start();
  const Block at(a.plan);
  const int lane = static_cast<int>(threadIdx.x) % Block::kLanes;

  uint4 out[Block::kRounds] = {}, dout[Block::kRounds] = {};
#pragma unroll
  for (int i = 0; i < Block::kRounds; ++i) {
    if (!at.exists(i) || at.column() >= p.dim) continue;
    out[i] = P::load(at.template address<T>(p.out, i));
    dout[i] = P::load(at.template address<T>(p.dout, i));
  }
  float4* const sums = reinterpret_cast<float4*>(a.dq + at.place * (kDim * kBlockQueries));
#pragma unroll
  for (int i = 0; i < kDim * kBlockQueries / 4 / kRowThreads; ++i) {
    sums[threadIdx.x + i * kRowThreads] = make_float4(0, 0, 0, 0);
  }
  if (a.tiles_added != nullptr && threadIdx.x < a.shares) {
    a.tiles_added[at.place * a.shares + threadIdx.x] = 0;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.next_tile = 0;

  float* const statistics = a.statistics + at.place * (2 * kBlockQueries);
#pragma unroll
  for (int i = 0; i < Block::kRounds; ++i) {
    float x[8], y[8];
    P::unpack(out[i], x);
    P::unpack(dout[i], y);
    float delta = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) delta = fmaf(x[k], y[k], delta);
    delta = reduce_lanes<Add, Block::kLanes>(delta);
    if (lane != 0) continue;
    constexpr float kPerNatural = Exponent<T>::kPerNatural;
    float lse = INFINITY;
    if (at.exists(i)) {
      const std::int64_t row =
          (static_cast<std::int64_t>(at.batch) * a.plan.heads + at.head) * a.plan.queries +
          at.q_begin + at.query(i);
      const float given = static_cast<const float*>(p.lse)[row];
      if (given != -INFINITY) lse = given * kPerNatural;
      if (p.dlse != nullptr) delta -= static_cast<const float*>(p.dlse)[row];
    }
    statistics[statistic_place(at.row(i))] = lse;
    statistics[kBlockQueries + statistic_place(at.row(i))] = -delta;
  }
#endif
}

struct BackwardSinks {
  HopperBackwardPlan plan;
  const float* statistics;
  HeadNumbers sinks;
  float* dsinks;
};

inline constexpr int kSinkThreads = 1024;

// dsinks = -sum over rows of exp(sink - lse) * delta; a CTA owns a head. The order of rows does not
// matter, and those that are not there have an infinite lse.
template <class T>
__global__ void __launch_bounds__(kSinkThreads)
    backward_sinks_kernel(const __grid_constant__ BackwardSinks a) {
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
  constexpr int kWarps = kSinkThreads / kWarp;
  constexpr int kQuads = kBlockQueries / 4;
  const int head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const float sink = a.sinks.at(0, head, 0.0f) * Exponent<T>::kPerNatural;
  float sum = 0;
  for (int batch = 0; batch < a.plan.batch; ++batch) {
    const float4* const first = reinterpret_cast<const float4*>(a.statistics) +
                                a.plan.block_place(batch, head, 0) * (std::int64_t{2} * kQuads);
    for (int i = thread; i < a.plan.query_blocks * kQuads; i += kSinkThreads) {
      const float4* const at = first + i / kQuads * (2 * kQuads) + i % kQuads;
      const float4 lse = at[0];
      const float4 minus_delta = at[kQuads];
      sum = fmaf(exp2_approximate(sink - lse.x), minus_delta.x, sum);
      sum = fmaf(exp2_approximate(sink - lse.y), minus_delta.y, sum);
      sum = fmaf(exp2_approximate(sink - lse.z), minus_delta.z, sum);
      sum = fmaf(exp2_approximate(sink - lse.w), minus_delta.w, sum);
    }
  }
  __shared__ float sums[kWarps];
  sum = reduce_lanes<Add>(sum);
  if (thread % kWarp == 0) sums[thread / kWarp] = sum;
  __syncthreads();
  if (thread >= kWarp) return;
  sum = reduce_lanes<Add>(sums[thread]);
  if (thread == 0) a.dsinks[head] = sum;
#endif
}

struct BackwardEpilogue {
  HopperBackwardPlan plan;
  const float* sums;
  HeadRows dq;
  int dim;
  float scale;
};

// Sums lie as wgmma leaves them: pieces of 64 columns, then 16 rows of a warp, then 8 columns, then
// a lane's four: two columns of a row and of that 8 below.
template <class T, int kDim>
__global__ void __launch_bounds__(kRowThreads)
    backward_epilogue_kernel(const __grid_constant__ BackwardEpilogue a) {
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
  using Block = QueryBlock<kDim>;
  wait_for_previous_kernel();
  const Block at(a.plan);
  const int column = at.column();
  if (column >= a.dim) return;
  const float* const sums = a.sums + at.place * (kDim * kBlockQueries) +
                            column / 64 * (64 * kBlockQueries) + column % 64 / 8 * 128;
  float v[Block::kRounds][8];
#pragma unroll
  for (int i = 0; i < Block::kRounds; ++i) {
    const int row = at.row(i);
    const float* const from = sums + row / 16 * 1024 + row % 8 * 16 + row / 8 % 2 * 2;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 pair = *reinterpret_cast<const float2*>(from + 4 * k);
      v[i][2 * k] = pair.x * a.scale;
      v[i][2 * k + 1] = pair.y * a.scale;
    }
  }
#pragma unroll
  for (int i = 0; i < Block::kRounds; ++i) {
    if (!at.exists(i)) continue;
    Pack<T, 8>::store(at.template address<T>(a.dq, i), Pack<T, 8>::pack(v[i]));
  }
#endif
}

}  // namespace transformer_kernels::cuda
