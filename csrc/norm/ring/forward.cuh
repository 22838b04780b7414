// SPDX-License-Identifier: MIT
// The persistent engine, forward pass of the norms on sm_90: CTAs walk over many rows, which reach
// them through a ring of stages in shared memory (core/cuda/row_ring.cuh). Each thread has the same
// columns in every row, so weight and bias stay in its registers. That pays where the parameters
// would otherwise cost as many bytes on the way from L2 as the rows do from memory (float32 beside
// 16-bit rows), and where a row needs so much shared memory that few one-shot CTAs fit an SM.
#pragma once

#include "core/cuda/row_ring.cuh"
#include "norm/kernels.h"
#include "norm/moments.cuh"

namespace transformer_kernels::cuda {

// The moments of a row, on their way between warps.
template <class T, bool kCenter>
struct RowMoments {
  using Message = Moments<float>;
  using Share = Moments<float>;
  static constexpr int kPackSize = 16 / static_cast<int>(sizeof(T));

  int row_packs;

  __device__ __forceinline__ Message total(const Share& share) const { return share; }
  __device__ __forceinline__ void publish(Message& to, const Share& share, int lane) const {
    if (lane == 0) to = share;
  }
  template <int kCount>
  __device__ __forceinline__ Message merge(const Message* parts, int first, int span) const {
    const int i = threadIdx.x % kCount;
    const auto elements = [&](int begin, int packs) {
      return static_cast<float>(max(0, min(row_packs - begin, packs)) * kPackSize);
    };
    return merge_moments<kCount, kCenter>(parts[i], elements(first + i * span, span),
                                          elements(first, kCount * span));
  }
  static __device__ __forceinline__ float4 bits(const Message& message) {
    return {message.anchor, message.mean, message.m2, message.far_m2};
  }
};

struct NormForwardRing {
  NormForwardProblem problem;
  int stages;
};

// T: storage of the matrices.
template <class T, bool kCenter, bool kResidual, class Plan>
__global__ void __launch_bounds__(Plan::plan.threads(), Plan::plan.ctas)
    norm_forward_ring_kernel(const __grid_constant__ NormForwardRing a) {
  using P = Pack<T, 16 / sizeof(T)>;
  constexpr RingPlan kPlan = Plan::plan;
  constexpr int kSize = P::size;
  constexpr int kPacks = kPlan.packs;
  constexpr int kTensors = kResidual ? 2 : 1;
  using Ring = RowRing<Plan, T, kTensors>;

  const NormForwardProblem& p = a.problem;
  extern __shared__ __align__(128) unsigned char shared[];
  using Sums = RowMoments<T, kCenter>;
  __shared__ RingExchange<Plan, Sums> exchanges[kPlan.groups];
  __shared__ std::uint64_t filled[kPlan.groups * kPlan.warps * kPlan.stages];
  __shared__ std::uint64_t arrived[kSumSlots];

  const int row_packs = static_cast<int>(p.cols) / kSize;
  const RingWarp<Plan> own(p.rows, row_packs);
  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : filled) mbarrier_init(shared_address(&barrier), 1);
    for (std::uint64_t& barrier : arrived) mbarrier_init(shared_address(&barrier), 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (kPlan.cluster > 1) {
    cluster_arrive();
    cluster_wait();
  }
  std::array<Rows, kTensors> operands{p.x};
  if constexpr (kResidual) operands[1] = p.residual;
  Ring ring(own, p, a.stages, shared_address(shared), filled, operands);

  // Parameters are kept as floats, whatever they are stored as.
  Affine<float, kSize> affine[kPacks];
#pragma unroll
  for (int slot = 0; slot < kPacks; ++slot) {
    if (!own.owns(slot)) continue;
    const auto col = static_cast<std::int64_t>(own.first + own.lane + slot * kWarp) * kSize;
    if (has_float_parameters<T>(p)) {
      affine[slot].load(p, col);
    } else {
      Affine<T, kSize> stored;
      stored.load(p, col);
      affine[slot] = stored.widened();
    }
  }

  T* y = own.template begin_of<T>(p.y) + own.lane * kSize;
  T* sum = kResidual ? own.template begin_of<T>(p.sum) + own.lane * kSize : nullptr;
  const float count = static_cast<float>(own.packs * kSize);
  const float inverse_cols = reciprocal(static_cast<float>(p.cols));
  const bool writes_statistics = own.rank == 0 && own.warp == 0 && own.lane == 0;
  for (int i = 0; i < own.rows; ++i) {
    // The values that are normalised, rounded to T.
    typename P::Raw kept[kPacks];
    const std::uint32_t stage = ring.wait();
#pragma unroll
    for (int slot = 0; slot < kPacks; ++slot) {
      if (!own.owns(slot)) continue;
      kept[slot] = ring.load(stage, 0, slot);
      if constexpr (kResidual) {
        float value[kSize], other[kSize];
        P::unpack(kept[slot], value);
        P::unpack(ring.load(stage, 1, slot), other);
#pragma unroll
        for (int k = 0; k < kSize; ++k) value[k] += other[k];
        kept[slot] = P::pack(value);
        P::store(sum + slot * kWarp * kSize, kept[slot]);
      }
    }
    ring.refill(own);

    // This warp's moments, then the row's.
    const auto for_each_value = [&](auto&& body) {
#pragma unroll
      for (int slot = 0; slot < kPacks; ++slot) {
        if (!own.owns(slot)) continue;
        float value[kSize];
        P::unpack(kept[slot], value);
#pragma unroll
        for (int k = 0; k < kSize; ++k) body(value[k]);
      }
    };
    float anchor = 0;
    if constexpr (kCenter) {
      float value[kSize] = {};
      if (own.owns(0)) P::unpack(kept[0], value);
      anchor = __shfl_sync(kAllLanes, anchor_in_pack<kSize>(value), 0);
    }
    Moments<float> moments =
        moments_of_warp<kCenter>(anchor, count, for_each_value, for_each_value);
    moments = exchanges[own.group].over_row(own, i, moments, arrived, Sums{row_packs});
    const float rstd = reciprocal_deviation(moments, inverse_cols, p.eps);
    if (writes_statistics) {
      const std::int64_t row = own.row + static_cast<std::int64_t>(i) * own.walkers;
      if (kCenter && p.mean) static_cast<float*>(p.mean)[row] = moments.whole_mean();
      if (p.rstd) static_cast<float*>(p.rstd)[row] = rstd;
    }

    const float offset = moments.offset(rstd);
#pragma unroll
    for (int slot = 0; slot < kPacks; ++slot) {
      if (!own.owns(slot)) continue;
      float value[kSize];
      P::unpack(kept[slot], value);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        value[k] = kCenter ? fmaf(value[k] - moments.anchor, rstd, offset) : value[k] * rstd;
      }
      affine[slot].apply(p, value);
      P::store(y + slot * kWarp * kSize, P::pack(value));
    }
    y += own.walkers * p.y.stride;
    if constexpr (kResidual) sum += own.walkers * p.sum.stride;
    ring.advance(own);
  }
}

template <class T>
void run_norm_forward_ring(const Context& context, const NormForwardProblem& p, std::size_t plan) {
  dispatch_norm_forward<T, is_ring>(p, plan, [&]<class Plan, bool kCenter, bool kResidual>() {
    const auto kernel = &norm_forward_ring_kernel<T, kCenter, kResidual, Plan>;
    constexpr RingPlan kPlan = Plan::plan;
    const int device = context.device.index;
    const int stages = norm_forward_ring_stages(kPlan, kResidual, device_limits(device));
    const int shared_bytes = stages * kPlan.stage_bytes() * (kResidual ? 2 : 1);
    const int resident = resident_clusters(p.op, kernel, kPlan, shared_bytes, device);
    const std::int64_t clusters = std::min<std::int64_t>(resident, divide_up(p.rows, kPlan.groups));
    const LaunchShape shape{.ctas = clusters * kPlan.cluster,
                            .threads = kPlan.threads(),
                            .cluster = kPlan.cluster,
                            .shared_bytes = static_cast<std::size_t>(shared_bytes)};
    launch(p.op, context, shape, kernel, NormForwardRing{p, stages});
  });
}

}  // namespace transformer_kernels::cuda
