// SPDX-License-Identifier: MIT
// The one-shot engine, backward pass of softmax on CUDA. It reads y and dy once and writes dx once.
//
//   softmax      dx = scale * y * (dy - sum(y * dy))
//   log-softmax  dx = scale * (dy - exp(y) * sum(dy))
#pragma once

#include "core/cuda/exponent.cuh"
#include "core/cuda/row.cuh"
#include "softmax/plan.h"

namespace transformer_kernels::cuda {

// A sum padded to the width of a cluster's messages.
template <class V>
struct alignas(8) RowSum {
  V value;
};

template <class Plan, class T, class V>
__device__ __forceinline__ V add_over_row(const Row<Plan, T>& row,
                                          RowScratch<Plan, RowSum<V>>& scratch, V value) {
  constexpr int kWarps = Plan::plan.warps();
  constexpr int kCluster = Plan::plan.cluster;
  RowSum<V> sum{reduce_lanes<Add>(value)};
  if constexpr (kWarps > 1) {
    const RowSum<V>* parts = share_in_group(row, scratch, sum);
    sum.value = reduce_lanes<Add, kWarps>(parts[threadIdx.x % kWarps].value);
  }
  if constexpr (kCluster > 1) {
    const RowSum<V>* parts = share_in_cluster(row, scratch, sum);
    sum.value = reduce_lanes<Add, kCluster>(parts[threadIdx.x % kCluster].value);
  }
  return sum.value;
}

// T: storage. Grid: ceil(rows / plan.rows) * cluster. dx may be dy: a thread writes only what it,
// and nobody else, has read for the last time.
template <class T, class Plan>
__global__ void __launch_bounds__(Plan::plan.cta_threads(), Plan::plan.min_ctas)
    softmax_backward_kernel(const __grid_constant__ SoftmaxBackwardProblem p) {
  using RowT = Row<Plan, T>;
  using P = Pack<T, RowT::kPackSize>;
  using V = typename P::Value;
  using Index = typename RowT::Index;
  using E = Exponent<T>;
  constexpr int kSize = P::size;
  constexpr bool kKept = Plan::plan.packs > 0;
  constexpr bool kBulk = Plan::plan.bulk;
  constexpr int kBatch = kBulk ? 1 : Plan::plan.wide ? 2 : 8;

  struct Inputs {
    typename P::Raw y;
    typename P::Raw dy;
  };

  __shared__ RowScratch<Plan, RowSum<V>> scratch;
  RowT row(p.rows, p.cols);
  const T* y = static_cast<const T*>(p.y) + row.index * p.y_stride;
  const T* dy = static_cast<const T*>(p.dy) + row.index * p.dy_stride;
  row.align_to(y);
  const std::int64_t slice = row.origin();

  announce_to_cluster(scratch);
  if constexpr (kBulk) {
    fetch_rows(row, scratch, p.cols, RowSource<T>(row, p.y, p.y_stride, p.rows, p.cols),
               RowSource<T>(row, p.dy, p.dy_stride, p.rows, p.cols));
  }
  if (!row.inside) return;
  if constexpr (kBulk) wait_for_row(row, scratch);
  const std::uint32_t y_stage = kBulk ? stage_of(row, p.cols, 0, 2) : 0;
  const std::uint32_t dy_stage = kBulk ? stage_of(row, p.cols, 1, 2) : 0;

  const auto read = [&](Index pack) -> Inputs {
    if constexpr (kBulk) {
      return {load_staged<P>(row, y_stage + pack * 16, pack),
              load_staged<P>(row, dy_stage + pack * 16, pack)};
    } else {
      return {load_pack<P>(row, y + slice, pack), load_pack<P>(row, dy + slice, pack)};
    }
  };
  // The output of a masked element, whose dx is 0. Its dy may be anything: in softmax its factor is
  // 0, in log-softmax it reaches the other elements through the row's sum.
  const V masked_out = p.log ? V(-INFINITY) : V(0);
  const auto unpack = [&](const Inputs& in, V* out, V* gradient) {
    P::unpack(in.y, out);
    P::unpack(in.dy, gradient);
    if (p.masked && !p.log) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) gradient[k] = out[k] == masked_out ? V(0) : gradient[k];
    }
  };

  Inputs kept[kKept ? Plan::plan.packs : 1];
  V own = 0;
  row.template for_each_batch<kBatch>(read, [&](int slot, Index, const Inputs& in) {
    if constexpr (kKept) kept[slot] = in;
    V out[kSize], gradient[kSize];
    unpack(in, out, gradient);
#pragma unroll
    for (int k = 0; k < kSize; ++k) own = fma(p.log ? V(1) : out[k], gradient[k], own);
  });
  const V sum = add_over_row(row, scratch, own);

  const V scale = static_cast<V>(p.scale);
  T* dx = static_cast<T*>(p.dx) + row.index * p.dx_stride + slice;
  const auto write = [&](Index pack, const Inputs& in) {
    V out[kSize], gradient[kSize];
    unpack(in, out, gradient);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const bool silent = p.masked && out[k] == masked_out;
      const V change = p.log ? fma(-E::power(out[k] * E::kPerNatural), sum, gradient[k])
                             : out[k] * (gradient[k] - sum);
      out[k] = silent ? V(0) : scale * change;
    }
    store_pack<P>(row, dx, pack, P::pack(out));
  };
  if constexpr (kKept) {
    row.for_each_pack([&](int slot, Index pack) { write(pack, kept[slot]); });
  } else {
    row.template for_each_batch<kBatch>(
        read, [&](int, Index pack, const Inputs& in) { write(pack, in); });
  }
}

}  // namespace transformer_kernels::cuda
