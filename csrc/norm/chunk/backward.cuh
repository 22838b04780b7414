// SPDX-License-Identifier: MIT
// The chunk engine, backward pass of the norms over narrow rows of any width, without gaps between
// them: dx, and partial sums of dweight and dbias that a lane keeps in registers for its columns.
// norm/ring/backward.cuh has the formulas, core/cuda/row_chunk.cuh the layout.
#pragma once

#include "core/cuda/chunk_launch.cuh"
#include "core/cuda/column_sum.h"
#include "core/cuda/row_chunk.cuh"
#include "core/cuda/scratch.h"
#include "norm/chunk/plan.h"
#include "norm/kernels.h"

namespace transformer_kernels::cuda {

struct NormBackwardChunkCall {
  NormBackwardProblem problem;
  ChunkShape shape;
  float* partial;  // [CTAs][2][pitch]; null where no parameter gradient is wanted
  std::int64_t pitch;
};

// T: storage of the matrices. dbias is of LayerNorm alone. Grid: as many CTAs as are resident at a
// time.
template <class T, bool kCenter, class Plan>
__global__ void __launch_bounds__(Plan::plan.cta_threads(), Plan::plan.ctas)
    norm_backward_chunk_kernel(const __grid_constant__ NormBackwardChunkCall a) {
  using P = Pack<T, 16 / sizeof(T)>;
  constexpr ChunkPlan kPlan = Plan::plan;
  constexpr int kSize = P::size;
  constexpr int kPacks = kPlan.packs;
  constexpr int kOwned = kPacks * kSize;
  // Results of the first pass are kept for the second where registers hold them.
  constexpr bool kKeep = kOwned <= 16;
  using Table = ColumnTable<Plan, T, float>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::uint64_t filled[kPlan.teams][kPlan.stages];
  Table& table = *reinterpret_cast<Table*>(shared);
  const NormBackwardProblem& p = a.problem;
  const ChunkLane<Plan, T> own(p.cols);
  ChunkRing<Plan, T, 2, 1> ring(own, a.shape, p.rows, shared_address(shared + sizeof(Table)),
                                filled, {p.x.data, p.dy.data}, {p.dx.data});
  table.fill(own.cols, [&](int col) {
    if (p.weight == nullptr) return 1.0f;
    return parameter_at<T>(p.weight, p.weight_dtype == p.dtype, col) +
           (p.zero_centered_weight ? 1.0f : 0.0f);
  });
  __syncthreads();
  const float* const weight = table.of(own.column);
  const float inverse_count = reciprocal(static_cast<float>(own.cols));

  float dweight[kOwned] = {};
  float dbias[kCenter ? kOwned : 1] = {};
  const auto statistics = [&](const void* of, int round) {
    const int row = ring.row(round);
    return row < p.rows ? __ldg(static_cast<const float*>(of) + row) : 0.0f;
  };
  for (; ring.more(); ring.advance()) {
    float mean_ahead = kCenter ? statistics(p.mean, 0) : 0.0f;
    float rstd_ahead = statistics(p.rstd, 0);
    ring.wait();
    for (int round = 0; round < ring.rounds; ++round) {
      const float mean = mean_ahead, rstd = rstd_ahead;
      if (round + 1 < ring.rounds) {
        if constexpr (kCenter) mean_ahead = statistics(p.mean, round + 1);
        rstd_ahead = statistics(p.rstd, round + 1);
      }
      const std::uint32_t dx = ring.result(0, round);
      const auto normalise = [&](int slot, float* g, float* xhat, const float* dy) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          xhat[k] = (kCenter ? xhat[k] - mean : xhat[k]) * rstd;
          // In a row of one element g cancels against its mean.
          g[k] = product(dy[k], weight[k * Table::kPitch + slot * kPlan.lanes]);
        }
      };
      // g and xhat of one pack, and dy, which is 0 outside of the row.
      const auto read_pack = [&](int slot, float* g, float* xhat, float* dy) {
        P::unpack(own.load(ring.input(0, round), slot, 0), xhat);
        P::unpack(own.load(ring.input(1, round), slot, 0), dy);
        normalise(slot, g, xhat, dy);
      };
      const auto reread_pack = [&](int slot, float* g, float* xhat, float* dy) {
        P::unpack(own.load(ring.input(0, round), slot), xhat);
        P::unpack(own.load(ring.input(1, round), slot), dy);
        normalise(slot, g, xhat, dy);
      };
      float g[kKeep ? kOwned : kSize], xhat[kKeep ? kOwned : kSize];
      float sum_g = 0, sum_gx = 0;
#pragma unroll
      for (int slot = 0; slot < kPacks; ++slot) {
        float* const gp = g + (kKeep ? slot * kSize : 0);
        float* const xp = xhat + (kKeep ? slot * kSize : 0);
        float dy[kSize];
        read_pack(slot, gp, xp, dy);
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          dweight[slot * kSize + k] = fmaf(dy[k], xp[k], dweight[slot * kSize + k]);
          if constexpr (kCenter) dbias[slot * kSize + k] += dy[k];
          if constexpr (kCenter) sum_g += gp[k];
          sum_gx = fmaf(gp[k], xp[k], sum_gx);
        }
      }
      if constexpr (kCenter) sum_g = reduce_lanes<Add, kPlan.lanes>(sum_g);
      sum_gx = reduce_lanes<Add, kPlan.lanes>(sum_gx);
      const float mean_g = sum_g * inverse_count;
      const float mean_gx = sum_gx * inverse_count;
#pragma unroll
      for (int slot = 0; slot < kPacks; ++slot) {
        float* const gp = g + (kKeep ? slot * kSize : 0);
        float* const xp = xhat + (kKeep ? slot * kSize : 0);
        float dy[kSize];
        if constexpr (!kKeep) reread_pack(slot, gp, xp, dy);
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          gp[k] = rstd * fmaf(-xp[k], mean_gx, kCenter ? gp[k] - mean_g : gp[k]);
        }
        own.store(dx, slot, P::pack(gp));
      }
    }
  }
  ring.finish();
  let_next_kernel_start();
  if (a.partial == nullptr) return;

  // The groups' sums meet in the ring's memory, group by group in order: one partial row a CTA.
  __syncthreads();
  constexpr int kFoldPitch = fold_pitch(kPlan, sizeof(T));
  constexpr int kGroups = kPlan.teams * kPlan.groups();
  float* const fold = reinterpret_cast<float*>(shared + sizeof(Table));
  float* const mine = fold + (own.team * kPlan.groups() + own.group) * 2 * kFoldPitch;
#pragma unroll
  for (int slot = 0; slot < kPacks; ++slot) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (!own.holds(slot, k)) continue;
      float* const at = mine + own.column_of(slot) + k;
      at[0] = dweight[slot * kSize + k];
      if constexpr (kCenter) at[kFoldPitch] = dbias[slot * kSize + k];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < (kCenter ? 2 : 1) * own.cols; i += kPlan.cta_threads()) {
    const int which = i < own.cols ? 0 : 1;
    const int col = i - which * own.cols;
    float sum = 0;
#pragma unroll 8
    for (int group = 0; group < kGroups; ++group) {
      sum += fold[(group * 2 + which) * kFoldPitch + col];
    }
    a.partial[(static_cast<std::int64_t>(blockIdx.x) * 2 + which) * a.pitch + col] = sum;
  }
}

template <class T, bool kCenter, class Plan>
void launch_norm_backward_chunk(const Context& context, const NormBackwardProblem& p,
                                const ChunkShape& shape, const LaunchShape& launch_shape) {
  const bool parameters = p.dweight != nullptr || p.dbias != nullptr;
  const std::int64_t pitch = rounded_up(p.cols, 4);
  const std::size_t bytes = parameters ? launch_shape.ctas * 2 * pitch * sizeof(float) : 0;
  const Scratch scratch(p.op, context, std::max<std::size_t>(bytes, 16));
  float* const partial = parameters ? scratch.as<float>() : nullptr;
  launch(p.op, context, launch_shape, &norm_backward_chunk_kernel<T, kCenter, Plan>,
         NormBackwardChunkCall{p, shape, partial, pitch});
  if (!parameters) return;
  sum_columns(p.op, context, p.weight_dtype,
              PartialGradients<float>{partial, static_cast<int>(launch_shape.ctas), pitch, p.cols,
                                      p.dweight, p.dbias},
              true);
}

template <class T>
void run_norm_backward_chunk(const Context& context, const NormBackwardProblem& p,
                             std::size_t plan) {
  dispatch_chunk<kNormBackwardChunks, T>(
      context, chunk_load(p), plan,
      [&]<class Plan>(const ChunkShape& shape, const LaunchShape& launch_shape) {
        dispatch_bool(p.center, [&]<bool kCenter>() {
          if constexpr (traits_suit<T>(Plan::row.traits, kCenter, false)) {
            launch_norm_backward_chunk<T, kCenter, Plan>(context, p, shape, launch_shape);
          }
        });
      });
}

}  // namespace transformer_kernels::cuda
