// SPDX-License-Identifier: MIT
// The chunk engine: both passes of softmax over narrow rows of any width, without gaps between
// them. One bulk copy moves a chunk of whole rows. See core/cuda/row_chunk.cuh.
#pragma once

#include "core/cuda/chunk_launch.cuh"
#include "core/cuda/row_chunk.cuh"
#include "softmax/finish.cuh"
#include "softmax/kernels.h"

namespace transformer_kernels::cuda {

template <class Problem>
struct SoftmaxChunkCall {
  Problem problem;
  ChunkShape shape;
};

// T: storage. Grid: as many CTAs as are resident at a time.
template <class T, class Plan>
__global__ void __launch_bounds__(Plan::plan.cta_threads(), Plan::plan.ctas)
    softmax_forward_chunk_kernel(
        const __grid_constant__ SoftmaxChunkCall<SoftmaxForwardProblem> a) {
  using P = Pack<T, 16 / sizeof(T)>;
  constexpr ChunkPlan kPlan = Plan::plan;
  constexpr int kSize = P::size;
  constexpr int kOwned = kPlan.packs * kSize;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::uint64_t filled[kPlan.teams][kPlan.stages];
  const SoftmaxForwardProblem& p = a.problem;
  const ChunkLane<Plan, T> own(p.cols);
  ChunkRing<Plan, T, 1, 1> ring(own, a.shape, p.rows, shared_address(shared), filled, {p.x}, {p.y});
  __syncthreads();
  const float scale = static_cast<float>(p.scale);

  for (; ring.more(); ring.advance()) {
    ring.wait();
    for (int round = 0; round < ring.rounds; ++round) {
      const std::uint32_t x = ring.input(0, round), y = ring.result(0, round);
      float v[kOwned];
      float max = -INFINITY;
#pragma unroll
      for (int slot = 0; slot < kPlan.packs; ++slot) {
        P::unpack(own.load(x, slot, kMinusInfinityWord<T>), v + slot * kSize);
      }
#pragma unroll
      for (int k = 0; k < kOwned; ++k) {
        v[k] = product(v[k], scale);
        max = fmaxf(max, v[k]);
      }
      max = reduce_lanes<Max, kPlan.lanes>(max);
      const float base = anchor(max);
      float sum = 0;
      const auto raise = [&]<bool kLog>() {
#pragma unroll
        for (int k = 0; k < kOwned; ++k) {
          const float distance = v[k] - base;
          const float power = power_of<T>(distance);
          sum += power;
          v[k] = kLog ? distance : power;
        }
      };
      if (p.log) {
        raise.template operator()<true>();
      } else {
        raise.template operator()<false>();
      }
      sum = reduce_lanes<Add, kPlan.lanes>(sum);
      const Finish<float> finish = finish_of<T, false, false>(p.log, 0.0f, sum);
#pragma unroll
      for (int slot = 0; slot < kPlan.packs; ++slot) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          float& out = v[slot * kSize + k];
          out = fmaf(out, finish.gain, finish.offset);
        }
        own.store(y, slot, P::pack(v + slot * kSize));
      }
    }
  }
  ring.finish();
}

template <class T, class Plan>
__global__ void __launch_bounds__(Plan::plan.cta_threads(), Plan::plan.ctas)
    softmax_backward_chunk_kernel(
        const __grid_constant__ SoftmaxChunkCall<SoftmaxBackwardProblem> a) {
  using P = Pack<T, 16 / sizeof(T)>;
  using E = Exponent<T>;
  constexpr ChunkPlan kPlan = Plan::plan;
  constexpr int kSize = P::size;
  constexpr int kOwned = kPlan.packs * kSize;
  constexpr bool kKeep = kOwned <= 16;  // else the second pass reads shared memory once more
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ std::uint64_t filled[kPlan.teams][kPlan.stages];
  const SoftmaxBackwardProblem& p = a.problem;
  const ChunkLane<Plan, T> own(p.cols);
  ChunkRing<Plan, T, 2, 1> ring(own, a.shape, p.rows, shared_address(shared), filled, {p.y, p.dy},
                                {p.dx});
  __syncthreads();
  const float scale = static_cast<float>(p.scale);

  for (; ring.more(); ring.advance()) {
    ring.wait();
    for (int round = 0; round < ring.rounds; ++round) {
      const std::uint32_t dx = ring.result(0, round);
      const std::uint32_t y = ring.input(0, round), dy = ring.input(1, round);
      float out[kKeep ? kOwned : kSize], gradient[kKeep ? kOwned : kSize];
      float sum = 0;
#pragma unroll
      for (int slot = 0; slot < kPlan.packs; ++slot) {
        float* const o = out + (kKeep ? slot * kSize : 0);
        float* const g = gradient + (kKeep ? slot * kSize : 0);
        P::unpack(own.load(y, slot, 0), o);
        P::unpack(own.load(dy, slot, 0), g);
        if (p.log) {
#pragma unroll
          for (int k = 0; k < kSize; ++k) sum += g[k];
        } else {
#pragma unroll
          for (int k = 0; k < kSize; ++k) sum = fmaf(o[k], g[k], sum);
        }
      }
      sum = reduce_lanes<Add, kPlan.lanes>(sum);
#pragma unroll
      for (int slot = 0; slot < kPlan.packs; ++slot) {
        float* const o = out + (kKeep ? slot * kSize : 0);
        float* const g = gradient + (kKeep ? slot * kSize : 0);
        if constexpr (!kKeep) {
          P::unpack(own.load(y, slot), o);
          P::unpack(own.load(dy, slot), g);
        }
        if (p.log) {
#pragma unroll
          for (int k = 0; k < kSize; ++k) {
            o[k] = scale * fmaf(-E::power(o[k] * E::kPerNatural), sum, g[k]);
          }
        } else {
#pragma unroll
          for (int k = 0; k < kSize; ++k) o[k] = scale * (o[k] * (g[k] - sum));
        }
        own.store(dx, slot, P::pack(o));
      }
    }
  }
  ring.finish();
}

template <class T, class Plan>
auto softmax_chunk_kernel(const SoftmaxForwardProblem&) {
  return &softmax_forward_chunk_kernel<T, Plan>;
}
template <class T, class Plan>
auto softmax_chunk_kernel(const SoftmaxBackwardProblem&) {
  return &softmax_backward_chunk_kernel<T, Plan>;
}

template <class T, class Problem>
void run_softmax_chunk(const Context& context, const Problem& p, std::size_t plan) {
  dispatch_chunk<kSoftmaxChunks<Problem>, T>(
      context, chunk_load(p), plan,
      [&]<class Plan>(const ChunkShape& shape, const LaunchShape& launch_shape) {
        launch("softmax", context, launch_shape, softmax_chunk_kernel<T, Plan>(p),
               SoftmaxChunkCall<Problem>{p, shape});
      });
}

}  // namespace transformer_kernels::cuda
