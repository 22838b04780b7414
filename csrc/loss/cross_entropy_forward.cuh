// SPDX-License-Identifier: MIT
// The loss of each row on CUDA and, on request, its gradient while the row is on the chip.
//
// Each thread keeps the maximum of its elements so far and the sum of their powers relative to it,
// rescaling the sum at each new maximum; the threads' results then merge over the warp, the group
// and the cluster. The gradient reads the row a second time, from shared memory or L2.
#pragma once

#include "core/cuda/launch.cuh"
#include "core/cuda/occupancy.h"
#include "loss/cross_entropy_kernels.h"
#include "loss/cross_entropy_terms.cuh"

namespace transformer_kernels::cuda {

__device__ __forceinline__ float natural_log(float v) { return logf(v); }
__device__ __forceinline__ double natural_log(double v) { return ::log(v); }

// The values from which a row's loss and gradient follow.
template <class T, class V = accumulate_t<T>>
struct RowResult {
  V top;
  V spread;
  V share;
  V loss;

  // `of_label` is the label's logit.
  template <bool kAny>
  __device__ RowResult(const LossSums<V>& sums, const RowTerms<T, kAny>& terms, V origin,
                       V of_label)
      : top(sums.max),
        spread(natural_log(sums.sum)),
        share(sums.share + terms.own()),
        loss(0) {
    if (kAny && terms.has_shares()) loss = sums.share * ((top - origin) + spread) - sums.logit;
    if (terms.has_label()) {
      loss += terms.own() * ((top - of_label) + spread);
    } else {
      loss += share - sums.share;  // of a label that is no class: NaN
    }
    loss += terms.z_loss(top + spread);
    if (!terms.ignored()) return;
    top = spread = share = loss = 0;
  }
};

template <class T>
__device__ __forceinline__ void write_result(const LossCall& call, std::int64_t row,
                                             const RowResult<T>& result) {
  using V = accumulate_t<T>;
  const CrossEntropyForwardProblem& p = call.p;
  if (call.losses != nullptr) {
    static_cast<V*>(call.losses)[row] = result.loss;
  } else if (p.loss_dtype == p.dtype) {
    static_cast<T*>(p.loss)[row] = narrow<T>(result.loss);
  } else {
    static_cast<V*>(p.loss)[row] = result.loss;
  }
  if (p.top == nullptr) return;
  static_cast<V*>(p.top)[row] = result.top;
  static_cast<V*>(p.spread)[row] = result.spread;
  static_cast<V*>(p.share)[row] = result.share;
}

// Whether a column lies in a pack of this thread.
template <class Plan, class T>
__device__ __forceinline__ bool owns_column(const Row<Plan, T>& row, std::int64_t col) {
  const std::int64_t pack = (col + row.phase) / row.kPackSize - row.first;
  return pack >= 0 && pack < row.packs && pack % row.kThreads == row.thread;
}

// The compiler needs more registers for sm_120 than for others.
constexpr int loss_ctas(const RowPlan& plan) {
  return kArchitecture >= 120 ? ctas_with_more_registers(plan.cta_threads(), plan.min_ctas)
                              : plan.min_ctas;
}

// T: storage. Grid: ceil(rows / plan.rows) * cluster. dx may be x: a thread writes only what it,
// and nobody else, has read for the last time.
template <class T, bool kGradient, class Plan>
__global__ void __launch_bounds__(Plan::plan.cta_threads(), loss_ctas(Plan::plan))
    loss_rows_kernel(const __grid_constant__ LossCall call) {
  using RowT = Row<Plan, T>;
  using P = Pack<T, RowT::kPackSize>;
  using V = typename P::Value;
  using Index = typename RowT::Index;
  constexpr bool kAny = Plan::kEntry.any_terms;
  constexpr bool kBulk = Plan::plan.bulk;
  constexpr int kSize = P::size;
  constexpr int kBatch = kBulk ? 2 : 4;
  const CrossEntropyForwardProblem& p = call.p;

  __shared__ RowScratch<Plan, LossSums<V>> scratch;
  RowT row(p.rows, p.cols);
  const T* const x = static_cast<const T*>(p.x) + row.index * p.x_stride;
  row.align_to(x);
  const std::int64_t slice = row.origin();

  announce_to_cluster(scratch);
  if constexpr (kBulk) {
    fetch_rows(row, scratch, p.cols, RowSource<T>(row, p.x, p.x_stride, p.rows, p.cols));
  }
  if (!row.inside) return;
  const RowTerms<T, kAny> terms(p, row.index);
  const V x_of_label = terms.has_label() ? V(widen(x[terms.label()])) : V(0);
  V origin = 0;
  if constexpr (kAny) {
    const V first = terms.logit(widen(x[0]));
    origin = isfinite(first) ? first : V(0);
  }
  if constexpr (kBulk) wait_for_row(row, scratch);
  const std::uint32_t stage = kBulk ? stage_of(row, p.cols, 0, 1) : 0;

  const auto read = [&](Index pack) {
    if constexpr (kBulk) {
      return load_shared(stage + pack * 16);
    } else {
      return load_pack<P>(row, x + slice, pack);
    }
  };
  const auto column_of = [&](Index pack) {
    return slice + static_cast<std::int64_t>(row.column(pack));
  };

  LossSums<V> own{V(-INFINITY), V(0), V(0), V(0)};
  row.template for_each_batch<kBatch>(read, [&](int, Index pack, const auto& raw) {
    V z[kSize];
    P::unpack(raw, z);
    terms.cap(z);
    if (kAny && terms.has_shares()) {
      V a[kSize];
      terms.shares(column_of(pack), a, [&](int k) { return row.holds(pack, k); });
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        own.share += a[k];
        own.logit = fma(a[k], z[k] - origin, own.logit);
      }
    }
    if (!row.holds(pack)) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) z[k] = row.holds(pack, k) ? z[k] : V(-INFINITY);
    }
    V max = own.max;
#pragma unroll
    for (int k = 0; k < kSize; ++k) max = Max()(max, z[k]);
    const V base = anchor(max);
    own.sum *= power_of<T>(own.max - base);
    own.max = max;
#pragma unroll
    for (int k = 0; k < kSize; ++k) own.sum += power_of<T>(z[k] - base);
  });
  const RowResult<T> result(merge_over_row(row, scratch, own), terms, origin,
                            terms.logit(x_of_label));
  if (row.thread == 0 && row.rank == 0) write_result<T>(call, row.index, result);
  if constexpr (!kGradient) return;

#if __CUDA_ARCH__ >= 900
  wait_for_previous_kernel();  // which may sum the rows' weights
#endif
  const V gain = call.total == nullptr ? V(1) : 1 / *static_cast<const V*>(call.total);
  const RowGradient<T, kAny> gradient{
      terms, result.top, result.spread,
      gain * terms.power_factor(result.share, result.top + result.spread), gain};
  T* const dx = static_cast<T*>(p.dx) + row.index * p.dx_stride + slice;
  if (terms.ignored()) {
    row.for_each_pack([&](int, Index pack) { store_pack<P>(row, dx, pack, typename P::Raw{}); });
    return;
  }
  row.template for_each_batch<kBatch>(read, [&](int, Index pack, const auto& raw) {
    V v[kSize];
    P::unpack(raw, v);
    gradient.apply(column_of(pack), v, [&](int k) { return row.holds(pack, k); });
    store_pack<P>(row, dx, pack, P::pack(v));
  });
  if (terms.has_label() && owns_column(row, terms.label())) {
    dx[terms.label() - slice] = narrow<T>(gradient.at_label(x_of_label));
  }
}

template <class T, bool kGradient, bool kBulk>
void launch_loss_rows(const Context& context, const LossCall& call, std::size_t plan) {
  dispatch_loss_plan<kGradient, kBulk>(plan, [&]<class Plan>() {
    if constexpr (is_compiled(Plan::plan, std::is_same_v<T, double>, kGradient)) {
      const CrossEntropyForwardProblem& p = call.p;
      const LaunchShape shape{
          .ctas = divide_up(p.rows, Plan::plan.rows) * Plan::plan.cluster,
          .threads = Plan::plan.cta_threads(),
          .cluster = Plan::plan.cluster,
          .shared_bytes = static_cast<std::size_t>(staged_bytes(Plan::plan, row_load(p))),
          .after_previous =
              call.after_sums && device_limits(context.device.index).architecture >= 90};
      launch("cross_entropy", context, shape, &loss_rows_kernel<T, kGradient, Plan>, call);
    }
  });
}

template <class T, bool kGradient>
void run_loss_rows(const Context& context, const LossCall& call, std::size_t plan) {
  launch_loss_rows<T, kGradient, false>(context, call, plan);
}

template <class T, bool kGradient>
void run_loss_bulk(const Context& context, const LossCall& call, std::size_t plan) {
  launch_loss_rows<T, kGradient, true>(context, call, plan);
}

}  // namespace transformer_kernels::cuda
