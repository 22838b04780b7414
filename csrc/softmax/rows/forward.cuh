// SPDX-License-Identifier: MIT
// The one-shot engine, forward pass of softmax on CUDA. It reads x once and writes y once.
//
// Each thread takes the maximum of its elements and the sum of their powers relative to it; (max,
// sum) pairs then merge over the warp, the group and the cluster, with one barrier a row.
#pragma once

#include "core/cuda/power_sum.cuh"
#include "softmax/finish.cuh"
#include "softmax/plan.h"
#include "softmax/row_mask.cuh"

namespace transformer_kernels::cuda {

// The part of the row that the causal mask lets through, in whole packs.
template <class Plan, class T>
__device__ __forceinline__ Row<Plan, T> visible_part(Row<Plan, T> row, std::int64_t visible) {
  const std::int64_t packs = divide_up(visible, row.kPackSize) - row.first;
  if (packs < row.packs) row.packs = packs < 0 ? 0 : static_cast<decltype(row.packs)>(packs);
  return row;
}

// T: storage. Grid: ceil(rows / plan.rows) * cluster. Masked kernels take the registers they need.
template <class T, bool kMasked, class Plan>
__global__ void __launch_bounds__(Plan::plan.cta_threads(), kMasked ? 1 : Plan::plan.min_ctas)
    softmax_forward_kernel(const __grid_constant__ SoftmaxForwardProblem p) {
  using RowT = Row<Plan, T>;
  using P = Pack<T, RowT::kPackSize>;
  using V = typename P::Value;
  using Index = typename RowT::Index;
  constexpr int kSize = P::size;
  constexpr bool kKept = Plan::plan.packs > 0;
  constexpr bool kBulk = Plan::plan.bulk;
  constexpr int kBatch = (kBulk ? 2 : Plan::plan.wide ? 4 : 8) / (kMasked ? 2 : 1);

  __shared__ RowScratch<Plan, PowerSum<V>> scratch;
  static_assert(!RowT::kShifted || !kMasked);
  RowT row(p.rows, p.cols);
  const T* x = static_cast<const T*>(p.x) + row.index * p.x_stride;
  row.align_to(x);
  const MaskOfRow<T> mask(p, kMasked ? row.index : 0);
  const std::int64_t slice = row.origin();
  const V scale = static_cast<V>(p.scale);

  announce_to_cluster(scratch);
  if constexpr (kBulk) {
    const RowSource<T> source(row, p.x, p.x_stride, p.rows, p.cols);
    if constexpr (kMasked) {
      fetch_rows(visible_part(row, mask.visible()), scratch, p.cols, source);
    } else {
      fetch_rows(row, scratch, p.cols, source);
    }
  }
  if (!row.inside) return;
  if constexpr (kBulk) wait_for_row(row, scratch);
  const std::uint32_t stage = kBulk ? stage_of(row, p.cols, 0, 1) : 0;

  const auto column_of = [&](Index pack) {
    return slice + static_cast<std::int64_t>(row.column(pack));
  };
  const auto read = [&](Index pack) {
    if constexpr (kBulk) {
      return load_shared(stage + pack * 16);
    } else {
      const bool wanted = !kMasked || column_of(pack) < mask.visible();
      return wanted ? load_pack<P>(row, x + slice, pack) : typename P::Raw{};
    }
  };
  // A pack of logits, scaled and masked. Each is rounded before the maximum comes off: fused with
  // that, two equal ones of any size could come out apart.
  const auto unpack = [&](Index pack, const typename P::Raw& raw, V* z) {
    P::unpack(raw, z);
    if constexpr (kMasked) {
      mask.template apply<kSize>(column_of(pack), scale, z);
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) z[k] = product(z[k], scale);
    }
  };
  const auto raise = [&](V& max, Index pack, const V* z) {
    row.for_each_element(pack, [&](int k) { max = Max()(max, z[k]); });
  };

  PowerSum<V> own{V(-INFINITY), V(0)};
  V values[kKept ? Plan::plan.packs * kSize : kSize];
  if constexpr (kKept) {
    row.template for_each_batch<kBatch>(read, [&](int slot, Index pack, const auto& raw) {
      unpack(pack, raw, values + slot * kSize);
      raise(own.max, pack, values + slot * kSize);
    });
    const V base = anchor(own.max);
    row.for_each_pack([&](int slot, Index pack) {
      V* z = values + slot * kSize;
      row.for_each_element(pack, [&](int k) {
        const V distance = z[k] - base;
        const V power = power_of<T>(distance);
        own.sum += power;
        z[k] = p.log ? distance : power;
      });
    });
  } else {
    // One pass: another reading of the row costs more than moving the sum to each new maximum.
    row.template for_each_batch<kBatch>(read, [&](int, Index pack, const auto& raw) {
      unpack(pack, raw, values);
      const V before = own.max;
      raise(own.max, pack, values);
      const V base = anchor(own.max);
      own.sum *= power_of<T>(before - base);
      row.for_each_element(pack, [&](int k) { own.sum += power_of<T>(values[k] - base); });
    });
  }

  const PowerSum<V> total = merge_over_row(row, scratch, own);
  const V base = anchor(total.max);
  const Finish<V> finish =
      finish_of<T, kMasked, kKept>(p.log, kKept ? own.max - base : V(0), total.sum);

  T* y = static_cast<T*>(p.y) + row.index * p.y_stride + slice;
  const auto write = [&](Index pack, V* v) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) v[k] = fma(v[k], finish.gain, finish.offset);
    store_pack<P>(row, y, pack, P::pack(v));
  };
  if constexpr (kKept) {
    row.for_each_pack([&](int slot, Index pack) { write(pack, values + slot * kSize); });
  } else {
    row.template for_each_batch<kBatch>(read, [&](int, Index pack, const auto& raw) {
      unpack(pack, raw, values);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        const V distance = values[k] - base;
        values[k] = p.log ? distance : power_of<T>(distance);
      }
      write(pack, values);
    });
  }
}

}  // namespace transformer_kernels::cuda
