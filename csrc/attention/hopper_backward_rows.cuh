// SPDX-License-Identifier: MIT
// Before and after the backward kernel on Hopper, one CTA for each block of queries of a head: what
// the kernel reads beside a query, and dq in its own dtype. Neighbouring CTAs have neighbouring
// heads of the same rows.
#pragma once

#include "attention/attention_problem.h"
#include "attention/hopper_backward_plan.h"
#include "core/cuda/pack.cuh"
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

  int head, block, batch;

  __device__ explicit QueryBlock(const HopperBackwardPlan& plan) {
    const int number = static_cast<int>(blockIdx.x);
    head = number % plan.heads;
    block = number / plan.heads % plan.query_blocks;
    batch = number / plan.heads / plan.query_blocks;
  }
  __device__ int column() const { return static_cast<int>(threadIdx.x) % kLanes * 8; }
  __device__ int row(int round) const {
    return static_cast<int>(threadIdx.x) / kLanes + round * kStep;
  }
  __device__ int query(int round) const { return block * kBlockQueries + row(round); }

  template <class T>
  __device__ T* address(const HeadRows& rows, int round) const {
    return static_cast<T*>(rows.data) + batch * rows.batch_stride + query(round) * rows.row_stride +
           head * rows.head_stride + column();
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
  int* tiles_added;
  int shares;  // of tiles_added in a block
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
  const std::int64_t place = a.plan.block_place(at.batch, at.head, at.block);
  const int lane = static_cast<int>(threadIdx.x) % Block::kLanes;

  uint4 out[Block::kRounds] = {}, dout[Block::kRounds] = {};
#pragma unroll
  for (int i = 0; i < Block::kRounds; ++i) {
    if (at.query(i) >= a.plan.queries || at.column() >= p.dim) continue;
    out[i] = P::load(at.template address<T>(p.out, i));
    dout[i] = P::load(at.template address<T>(p.dout, i));
  }
  float4* const sums = reinterpret_cast<float4*>(a.dq + place * (kDim * kBlockQueries));
#pragma unroll
  for (int i = 0; i < kDim * kBlockQueries / 4 / kRowThreads; ++i) {
    sums[threadIdx.x + i * kRowThreads] = make_float4(0, 0, 0, 0);
  }
  if (threadIdx.x < a.shares) a.tiles_added[place * a.shares + threadIdx.x] = 0;
  if (place == 0 && threadIdx.x == 0) *a.next_tile = 0;

  float* const statistics = a.statistics + place * (2 * kBlockQueries);
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
    constexpr float kPerNatural = 1.44269504088896340736f;  // log2(e)
    float lse = INFINITY;
    if (at.query(i) < a.plan.queries) {
      const std::int64_t row =
          (static_cast<std::int64_t>(at.batch) * a.plan.heads + at.head) * a.plan.queries +
          at.query(i);
      const float given = static_cast<const float*>(p.lse)[row];
      if (given != -INFINITY) lse = given * kPerNatural;
      if (p.dlse != nullptr) delta -= static_cast<const float*>(p.dlse)[row];
    }
    statistics[statistic_place(at.row(i))] = lse;
    statistics[kBlockQueries + statistic_place(at.row(i))] = -delta;
  }
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
  const float* const sums =
      a.sums + a.plan.block_place(at.batch, at.head, at.block) * (kDim * kBlockQueries) +
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
    if (at.query(i) >= a.plan.queries) continue;
    Pack<T, 8>::store(at.template address<T>(a.dq, i), Pack<T, 8>::pack(v[i]));
  }
#endif
}

}  // namespace transformer_kernels::cuda
