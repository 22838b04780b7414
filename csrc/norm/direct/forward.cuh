// SPDX-License-Identifier: MIT
// The engine of small problems, forward pass of the norms on CUDA: a CTA takes one row straight
// from global memory into registers. See core/cuda/direct_row.cuh.
//
// All threads of a row take their sums relative to one anchor from the row's first pack, which each
// of them reads: so sums are added behind one barrier, without a merge of means.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "core/cuda/occupancy.h"
#include "norm/kernels.h"
#include "norm/moments.cuh"

namespace transformer_kernels::cuda {

// The arguments that the kernel needs of a problem, and no more: a launch waits for its parameters.
struct DirectNormForward {
  Rows x;
  Rows residual;
  Rows y;
  Rows sum;
  const void* weight;  // as the bias, mean and rstd: null where there is none
  const void* bias;
  float* mean;
  float* rstd;
  int cols;
  int packs;  // of a row
  float eps;
  bool zero_centered_weight;
};

// Over a row's elements relative to the anchor: their sum, and that of their squares.
struct AnchoredSums {
  float sum;
  float squares;
};

template <int kWarps>
__device__ __forceinline__ AnchoredSums add_over_row(AnchoredSums (&scratch)[kWarps],
                                                     AnchoredSums own) {
  own = {reduce_lanes<Add>(own.sum), reduce_lanes<Add>(own.squares)};
  own = gather_warps(scratch, own, {0, 0});
  return {reduce_lanes<Add, kWarps>(own.sum), reduce_lanes<Add, kWarps>(own.squares)};
}

// visit(body) calls body with each element of the row that this thread owns; revisit does so once
// more. One result for all threads.
template <bool kCenter, int kWarps, class Visit, class Revisit>
__device__ __forceinline__ Moments<float> moments_of_row(AnchoredSums (&scratch)[2][kWarps],
                                                         float anchor, float per_element,
                                                         Visit&& visit, Revisit&& revisit) {
  AnchoredSums sums{0, 0};
  visit([&](float value) {
    const float off = kCenter ? value - anchor : value;
    if constexpr (kCenter) sums.sum += off;
    sums.squares = fmaf(off, off, sums.squares);
  });
  sums = add_over_row(scratch[0], sums);
  Moments<float> moments{anchor, 0, sums.squares, 0};
  if constexpr (kCenter) {
    const float mean = sums.sum * per_element;
    const float shift = sums.sum * mean;
    moments.mean = sums.sum * (per_element / kNearUnit<float>);
    moments.m2 -= shift;
    if (shift > kTrustedAnchor<float> * moments.m2) {
      sums = {0, 0};
      revisit([&](float value) {
        const float off = value - anchor - mean;
        sums.squares = fmaf(off, off, sums.squares);
      });
      moments.m2 = add_over_row(scratch[1], sums).squares;
    }
  }
  if (!moments.far()) return moments;
  return far_moments<kCenter>(per_element, revisit, [&](float part) {
    __syncthreads();  // everyone has read what is there
    return add_over_row(scratch[0], {part, 0}).sum;
  });
}

// raw + more, rounded to the type of its elements.
template <class P, class Raw>
__device__ __forceinline__ void add_pack(Raw& raw, const Raw& more) {
  float a[P::size], b[P::size];
  raw.unpack(a);
  more.unpack(b);
#pragma unroll
  for (int k = 0; k < P::size; ++k) a[k] += b[k];
  raw.piece[0] = P::pack(a);
}

// Whether parameters are read while the row is under way. The compiler for sm_75 needs a few
// registers more, which float32 parameters beside 16-bit rows do not leave.
template <class T, class W>
constexpr bool loads_parameters_early() {
  return kArchitecture >= 80 || sizeof(W) <= sizeof(T);
}

// T: storage of the matrices. W: storage of weight and bias. Grid: rows. `sum` may be `residual`:
// it is written when every thread of the row has read.
template <class T, class W, bool kCenter, bool kResidual, class Plan>
__global__ void __launch_bounds__(Plan::plan.most_threads, Plan::plan.min_ctas)
    direct_norm_forward_kernel(const __grid_constant__ DirectNormForward p) {
  using RowT = DirectRow<T, Plan>;
  using P = typename RowT::P;
  using Raw = typename RowT::Raw;
  constexpr int kSize = RowT::kSize;
  constexpr int kPacks = RowT::kPacks;
  __shared__ AnchoredSums scratch[2][Plan::plan.warps()];

  follow_previous_kernel();
  const RowT row{p.packs};
  const auto at = [](const Rows& m) { return static_cast<T*>(m.data) + blockIdx.x * m.stride; };
  Raw x[kPacks], head;
  row.load(at(p.x), x);
  if constexpr (kCenter) head.load_in_order(at(p.x));
  [[maybe_unused]] Raw residual[kPacks], residual_head;
  if constexpr (kResidual) {
    row.load(at(p.residual), residual);
    if constexpr (kCenter) residual_head.load_in_order(at(p.residual));
  }
  ParameterPack<W, kSize> weight[kPacks], bias[kPacks];
  const auto load_parameters = [&] {
    if (p.weight != nullptr) row.load(static_cast<const W*>(p.weight), weight);
    if (p.bias != nullptr) row.load(static_cast<const W*>(p.bias), bias);
  };
  if constexpr (loads_parameters_early<T, W>()) load_parameters();

  if constexpr (kResidual) {
#pragma unroll
    for (int slot = 0; slot < kPacks; ++slot) add_pack<P>(x[slot], residual[slot]);
    if constexpr (kCenter) add_pack<P>(head, residual_head);
  }
  float anchor = 0;
  if constexpr (kCenter) {
    float value[kSize];
    head.unpack(value);
    anchor = anchor_in_pack<kSize>(value);
  }
  const auto for_each_value = [&](auto&& unpack, auto&& body) {
#pragma unroll
    for (int slot = 0; slot < kPacks; ++slot) {
      if (!row.owns(slot)) break;
      float value[kSize];
      unpack(x[slot], value);
#pragma unroll
      for (float v : value) body(v);
    }
  };
  const auto first = [](const Raw& raw, float* out) { raw.unpack(out); };
  const auto again = [](const Raw& raw, float* out) { raw.unpack_again(out); };
  const float per_element = reciprocal(static_cast<float>(p.cols));
  const Moments<float> moments = moments_of_row<kCenter>(
      scratch, anchor, per_element, [&](auto&& body) { for_each_value(first, body); },
      [&](auto&& body) { for_each_value(again, body); });
  const float rstd = reciprocal_deviation(moments, per_element, p.eps);
  if (threadIdx.x == 0) {
    if (kCenter && p.mean != nullptr) p.mean[blockIdx.x] = moments.whole_mean();
    if (p.rstd != nullptr) p.rstd[blockIdx.x] = rstd;
  }

  if constexpr (!loads_parameters_early<T, W>()) load_parameters();
#pragma unroll
  for (int slot = 0; slot < kPacks; ++slot) {
    if constexpr (kResidual) row.store(at(p.sum), slot, x[slot].piece[0]);
    float value[kSize];
    x[slot].unpack_again(value);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      value[k] = fmaf(value[k] - moments.anchor, rstd, moments.offset(rstd));
    }
    Affine<W, kSize>{weight[slot], bias[slot]}.apply(p, value);
    row.store(at(p.y), slot, P::pack(value));
  }
}

template <class T, class W, bool kCenter, bool kResidual, class Plan>
void launch_norm_forward_direct(const Context& context, const NormForwardProblem& p) {
  const int packs = static_cast<int>(p.cols / DirectRow<T, Plan>::kSize);
  const DirectNormForward parameters{.x = p.x,
                                     .residual = p.residual,
                                     .y = p.y,
                                     .sum = p.sum,
                                     .weight = p.weight,
                                     .bias = p.bias,
                                     .mean = static_cast<float*>(p.mean),
                                     .rstd = static_cast<float*>(p.rstd),
                                     .cols = static_cast<int>(p.cols),
                                     .packs = packs,
                                     .eps = static_cast<float>(p.eps),
                                     .zero_centered_weight = p.zero_centered_weight};
  launch_direct<Plan>(p.op, context, p.rows, packs,
                      &direct_norm_forward_kernel<T, W, kCenter, kResidual, Plan>, parameters);
}

// The dtype of the parameters is a template argument here alone: code that does not run costs these
// kernels time as well.
template <class T>
void run_norm_forward_direct(const Context& context, const NormForwardProblem& p,
                             std::size_t plan) {
  if constexpr (!std::is_same_v<T, double>) {
    dispatch_norm_forward<T, is_direct>(p, plan, [&]<class Plan, bool kCenter, bool kResidual>() {
      if (has_float_parameters<T>(p)) {
        launch_norm_forward_direct<T, float, kCenter, kResidual, Plan>(context, p);
      } else {
        launch_norm_forward_direct<T, T, kCenter, kResidual, Plan>(context, p);
      }
    });
  }
}

}  // namespace transformer_kernels::cuda
