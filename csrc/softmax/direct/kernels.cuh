// SPDX-License-Identifier: MIT
// The engine of small problems without a mask: both passes of softmax. A CTA takes one row straight
// from global memory into registers. See core/cuda/direct_row.cuh.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "core/dispatch.h"
#include "softmax/finish.cuh"
#include "softmax/kernels.h"

namespace transformer_kernels::cuda {

// The arguments that the kernels need of a problem, and no more: a launch waits for its parameters.
struct DirectSoftmaxForward {
  const void* x;
  void* y;
  std::int64_t x_stride;
  std::int64_t y_stride;
  int packs;  // of a row
  float scale;
};

struct DirectSoftmaxBackward {
  const void* y;
  const void* dy;
  void* dx;
  std::int64_t y_stride;
  std::int64_t dy_stride;
  std::int64_t dx_stride;
  int packs;
  float scale;
};

// T: storage. Grid: rows.
template <class T, bool kLog, class Plan>
__global__ void __launch_bounds__(Plan::plan.most_threads, Plan::plan.min_ctas)
    direct_softmax_forward_kernel(const __grid_constant__ DirectSoftmaxForward p) {
  using RowT = DirectRow<T, Plan>;
  constexpr int kSize = RowT::kSize;
  constexpr int kWarps = Plan::plan.warps();
  __shared__ PowerSum<float> scratch[kWarps];

  follow_previous_kernel();
  const RowT row{p.packs};
  typename RowT::Raw x[RowT::kPacks];
  row.load(static_cast<const T*>(p.x) + blockIdx.x * p.x_stride, x);

  float value[RowT::kPacks][kSize];
  float own = -INFINITY;
#pragma unroll
  for (int slot = 0; slot < RowT::kPacks; ++slot) {
    x[slot].unpack(value[slot]);
#pragma unroll
    for (float& z : value[slot]) {
      z = row.owns(slot) ? product(z, p.scale) : -INFINITY;
      own = fmaxf(own, z);
    }
  }
  // Powers around the warp's maximum, which then move to the row's.
  PowerSum<float> part{warp_maximum(own), 0};
  const float base = anchor(part.max);
#pragma unroll
  for (int slot = 0; slot < RowT::kPacks; ++slot) {
#pragma unroll
    for (float& z : value[slot]) {
      const float distance = z - base;
      const float power = power_of<T>(distance);
      part.sum += power;
      z = kLog ? distance : power;
    }
  }
  part.sum = reduce_lanes<Add>(part.sum);
  const PowerSum<float> other = gather_warps(scratch, part, {-INFINITY, 0});
  const float row_base = anchor(warp_maximum(other.max));
  const float sum = reduce_lanes<Add, kWarps>(other.sum * power_of<T>(other.max - row_base));
  const Finish<float> finish = finish_of<T, false, true>(kLog, part.max - row_base, sum);

  T* const y = static_cast<T*>(p.y) + blockIdx.x * p.y_stride;
#pragma unroll
  for (int slot = 0; slot < RowT::kPacks; ++slot) {
#pragma unroll
    for (float& z : value[slot]) z = fmaf(z, finish.gain, finish.offset);
    row.store(y, slot, RowT::P::pack(value[slot]));
  }
}

// Grid: rows. dx may be dy.
template <class T, bool kLog, class Plan>
__global__ void __launch_bounds__(Plan::plan.most_threads, Plan::plan.min_ctas)
    direct_softmax_backward_kernel(const __grid_constant__ DirectSoftmaxBackward p) {
  using E = Exponent<T>;
  using RowT = DirectRow<T, Plan>;
  constexpr int kSize = RowT::kSize;
  constexpr int kWarps = Plan::plan.warps();
  __shared__ float scratch[kWarps];

  follow_previous_kernel();
  const RowT row{p.packs};
  typename RowT::Raw y[RowT::kPacks], dy[RowT::kPacks];
  row.load(static_cast<const T*>(p.y) + blockIdx.x * p.y_stride, y);
  row.load(static_cast<const T*>(p.dy) + blockIdx.x * p.dy_stride, dy);

  float own = 0;
#pragma unroll
  for (int slot = 0; slot < RowT::kPacks; ++slot) {
    float out[kSize], gradient[kSize];
    y[slot].unpack(out);
    dy[slot].unpack(gradient);
#pragma unroll
    for (int k = 0; k < kSize; ++k) own = fmaf(kLog ? 1.0f : out[k], gradient[k], own);
  }
  own = gather_warps(scratch, reduce_lanes<Add>(own), 0.0f);
  const float sum = reduce_lanes<Add, kWarps>(own);

  T* const dx = static_cast<T*>(p.dx) + blockIdx.x * p.dx_stride;
#pragma unroll
  for (int slot = 0; slot < RowT::kPacks; ++slot) {
    float out[kSize], gradient[kSize];
    y[slot].unpack_again(out);
    dy[slot].unpack_again(gradient);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float change = kLog ? fmaf(-E::power(out[k] * E::kPerNatural), sum, gradient[k])
                                : out[k] * (gradient[k] - sum);
      out[k] = p.scale * change;
    }
    row.store(dx, slot, RowT::P::pack(out));
  }
}

template <class T, class Plan>
void launch_softmax_direct(const Context& context, const SoftmaxForwardProblem& p) {
  const int packs = static_cast<int>(p.cols / DirectRow<T, Plan>::kSize);
  const DirectSoftmaxForward parameters{p.x,        p.y,   p.x_stride,
                                        p.y_stride, packs, static_cast<float>(p.scale)};
  dispatch_bool(p.log, [&]<bool kLog>() {
    launch_direct<Plan>("softmax", context, p.rows, packs,
                        &direct_softmax_forward_kernel<T, kLog, Plan>, parameters);
  });
}

template <class T, class Plan>
void launch_softmax_direct(const Context& context, const SoftmaxBackwardProblem& p) {
  const int packs = static_cast<int>(p.cols / DirectRow<T, Plan>::kSize);
  const DirectSoftmaxBackward parameters{
      p.y, p.dy, p.dx, p.y_stride, p.dy_stride, p.dx_stride, packs, static_cast<float>(p.scale)};
  dispatch_bool(p.log, [&]<bool kLog>() {
    launch_direct<Plan>("softmax", context, p.rows, packs,
                        &direct_softmax_backward_kernel<T, kLog, Plan>, parameters);
  });
}

template <class T, class Problem>
void run_softmax_direct(const Context& context, const Problem& p, std::size_t plan) {
  if constexpr (!std::is_same_v<T, double>) {
    dispatch_softmax<is_direct_softmax>(
        p, plan, [&]<class Plan>() { launch_softmax_direct<T, Plan>(context, p); });
  }
}

}  // namespace transformer_kernels::cuda
