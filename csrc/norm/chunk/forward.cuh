// SPDX-License-Identifier: MIT
// The chunk engine, forward pass of the norms over narrow rows of any width, without gaps between
// them: one bulk copy moves a chunk of whole rows. See core/cuda/row_chunk.cuh.
#pragma once

#include "core/cuda/chunk_launch.cuh"
#include "core/cuda/row_chunk.cuh"
#include "norm/chunk/plan.h"
#include "norm/kernels.h"
#include "norm/moments.cuh"

namespace transformer_kernels::cuda {

struct NormForwardChunkCall {
  NormForwardProblem problem;
  ChunkShape shape;
};

// Mean and sum of squares around it of a row, of which kLanes neighbours hold `count` elements, as
// differences from an anchor; the others of `off` are 0.
template <int kLanes, int kOwned>
__device__ __forceinline__ Moments<float> moments_of_lanes(float anchor, const float* off,
                                                           float count, auto&& is_own) {
  float sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < kOwned; ++k) {
    sum += off[k];
    squares = fmaf(off[k], off[k], squares);
  }
  sum = reduce_lanes<Add, kLanes>(sum);
  squares = reduce_lanes<Add, kLanes>(squares);
  const float per_element = reciprocal(count);
  const float mean = sum * per_element;
  const float shift = sum * mean;
  float m2 = squares - shift;
  const bool outlier = shift > kTrustedAnchor<float> * m2;
  if (__any_sync(kAllLanes, outlier)) {
    float again = 0;
#pragma unroll
    for (int k = 0; k < kOwned; ++k) {
      const float from_mean = is_own(k) ? off[k] - mean : 0.0f;
      again = fmaf(from_mean, from_mean, again);
    }
    again = reduce_lanes<Add, kLanes>(again);
    if (outlier) m2 = again;
  }
  return {anchor, sum * (per_element / kNearUnit<float>), m2, 0};
}

// T: storage of the matrices. Grid: as many CTAs as are resident at a time.
template <class T, bool kCenter, class Plan>
__global__ void __launch_bounds__(Plan::plan.cta_threads(), Plan::plan.ctas)
    norm_forward_chunk_kernel(const __grid_constant__ NormForwardChunkCall a) {
  using P = Pack<T, 16 / sizeof(T)>;
  constexpr ChunkPlan kPlan = Plan::plan;
  constexpr int kSize = P::size;
  constexpr int kOwned = kPlan.packs * kSize;
  using Table = ColumnTable<Plan, T, ColumnAffine>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::uint64_t filled[kPlan.teams][kPlan.stages];
  Table& table = *reinterpret_cast<Table*>(shared);
  const NormForwardProblem& p = a.problem;
  const ChunkLane<Plan, T> own(p.cols);
  ChunkRing<Plan, T, 1, 1> ring(own, a.shape, p.rows, shared_address(shared + sizeof(Table)),
                                filled, {p.x.data}, {p.y.data});
  const bool of_rows_type = p.weight_dtype == p.dtype;
  table.fill(own.cols, [&](int col) {
    ColumnAffine affine{1, 0};
    if (p.weight) {
      affine.weight =
          parameter_at<T>(p.weight, of_rows_type, col) + (p.zero_centered_weight ? 1.0f : 0.0f);
    }
    if (p.bias) affine.bias = parameter_at<T>(p.bias, of_rows_type, col);
    return affine;
  });
  __syncthreads();
  const ColumnAffine* const affine = table.of(own.column);
  const float count = static_cast<float>(own.cols);
  const float inverse_count = reciprocal(count);

  for (; ring.more(); ring.advance()) {
    ring.wait();
    for (int round = 0; round < ring.rounds; ++round) {
      const std::uint32_t x = ring.input(0, round), y = ring.result(0, round);
      const T anchor = kCenter ? own.anchor(x) : T{};
      float v[kOwned];
#pragma unroll
      for (int slot = 0; slot < kPlan.packs; ++slot) {
        P::unpack(own.load(x, slot, repeat_in_word(anchor)), v + slot * kSize);
      }
      Moments<float> moments{};
      if constexpr (kCenter) {
#pragma unroll
        for (int k = 0; k < kOwned; ++k) v[k] -= widen(anchor);
        moments = moments_of_lanes<kPlan.lanes, kOwned>(
            widen(anchor), v, count, [&](int k) { return own.holds(k / kSize, k % kSize); });
      } else {
#pragma unroll
        for (int k = 0; k < kOwned; ++k) moments.m2 = fmaf(v[k], v[k], moments.m2);
        moments.m2 = reduce_lanes<Add, kPlan.lanes>(moments.m2);
      }
      if (__any_sync(kAllLanes, moments.far())) {
        const auto for_each_value = [&](auto&& body) {
#pragma unroll 1
          for (int slot = 0; slot < kPlan.packs; ++slot) {
            float value[kSize];
            P::unpack(own.load(x, slot), value);
#pragma unroll
            for (int k = 0; k < kSize; ++k) {
              if (own.holds(slot, k)) body(value[k]);
            }
          }
        };
        const Moments<float> again = far_moments<kCenter>(count, for_each_value, [](float part) {
          return reduce_lanes<Add, Plan::plan.lanes>(part);
        });
        if (moments.far()) {
          moments = again;
          // Without the anchor, relative to which they may have overflowed.
#pragma unroll
          for (int slot = 0; kCenter && slot < kPlan.packs; ++slot) {
            P::unpack(own.load(x, slot), v + slot * kSize);
          }
        }
      }
      const float rstd = reciprocal_deviation(moments, inverse_count, p.eps);
      const int row = ring.row(round);
      if (own.lane == 0 && row < p.rows) {
        if (kCenter && p.mean) static_cast<float*>(p.mean)[row] = moments.whole_mean();
        if (p.rstd) static_cast<float*>(p.rstd)[row] = rstd;
      }
      const float offset = moments.offset(rstd);
#pragma unroll
      for (int slot = 0; slot < kPlan.packs; ++slot) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          const ColumnAffine with = affine[k * Table::kPitch + slot * kPlan.lanes];
          float& out = v[slot * kSize + k];
          out = fmaf(kCenter ? fmaf(out, rstd, offset) : out * rstd, with.weight, with.bias);
        }
        own.store(y, slot, P::pack(v + slot * kSize));
      }
    }
  }
  ring.finish();
}

template <class T>
void run_norm_forward_chunk(const Context& context, const NormForwardProblem& p, std::size_t plan) {
  dispatch_chunk<kNormForwardChunks, T>(
      context, chunk_load(p), plan,
      [&]<class Plan>(const ChunkShape& shape, const LaunchShape& launch_shape) {
        dispatch_bool(p.center, [&]<bool kCenter>() {
          launch(p.op, context, launch_shape, &norm_forward_chunk_kernel<T, kCenter, Plan>,
                 NormForwardChunkCall{p, shape});
        });
      });
}

}  // namespace transformer_kernels::cuda
