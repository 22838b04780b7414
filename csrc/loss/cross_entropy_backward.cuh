// SPDX-License-Identifier: MIT
// The gradient on CUDA from the saved tensors of the forward pass, and the scaling of gradients in
// place. In both, no column of a row needs another column.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "core/cuda/launch.cuh"
#include "loss/cross_entropy_kernels.h"
#include "loss/cross_entropy_terms.cuh"

namespace transformer_kernels::cuda {

template <std::size_t kIndex>
struct PartPlanAt {
  static constexpr RowPlan plan = kPartPlans[kIndex];
};

// A part of a row of a PartGrid, of which this thread owns kPartPacks packs.
template <class T, class Plan>
class RowPart {
 public:
  using RowT = Row<Plan, T>;
  using P = Pack<T, RowT::kPackSize>;

  // `block`: of the grid's CTAs.
  __device__ __forceinline__ RowPart(const void* x, std::int64_t stride, std::int64_t rows,
                                     std::int64_t cols, unsigned block, unsigned parts)
      : row(rows, cols) {
    const unsigned row_block = block / parts;  // 64 bits would take a call
    row.index = std::int64_t{row_block} * blockDim.y + threadIdx.y;
    row.inside = row.index < rows;
    row.align_to(static_cast<const T*>(x) + row.index * stride);
    first_ = std::int64_t{block - row_block * parts} * blockDim.x * kPartPacks + threadIdx.x;
  }

  __device__ __forceinline__ std::int64_t pack(int slot) const {
    return first_ + static_cast<std::int64_t>(slot) * blockDim.x;
  }
  __device__ __forceinline__ bool owns_column(std::int64_t col) const {
    const std::int64_t of_column = (col + row.phase) / RowT::kPackSize;
    bool found = false;
#pragma unroll
    for (int slot = 0; slot < kPartPacks; ++slot) found = found || pack(slot) == of_column;
    return found;
  }
  __device__ __forceinline__ bool owns(int slot) const {
    return row.inside && pack(slot) < row.packs;
  }

  // Loads by plain loads: see docs/decisions/0012.
  __device__ __forceinline__ void load(const void* x, std::int64_t stride,
                                       typename P::Raw (&raw)[kPartPacks]) const {
    const T* const start = static_cast<const T*>(x) + row.index * stride;
#pragma unroll
    for (int slot = 0; slot < kPartPacks; ++slot) {
      if (owns(slot)) raw[slot] = reload_pack<P>(row, start, pack(slot));
    }
  }

  RowT row;

 private:
  std::int64_t first_;
};

struct LossBackwardCall {
  CrossEntropyBackwardProblem p;
  int parts;  // of a row
};

// T: storage. Grid: a PartGrid's. dx may be x.
template <class T, bool kAny, class Plan>
__global__ void __launch_bounds__(kPartThreads)
    loss_backward_kernel(const __grid_constant__ LossBackwardCall call) {
  using Part = RowPart<T, Plan>;
  using P = typename Part::P;
  using V = typename P::Value;
  const CrossEntropyBackwardProblem& p = call.p;
  follow_previous_kernel();
  const Part part(p.x, p.x_stride, p.rows, p.cols, blockIdx.x, call.parts);
  const auto& row = part.row;
  if (!row.inside) return;
  typename P::Raw raw[kPartPacks];
  part.load(p.x, p.x_stride, raw);

  const RowTerms<T, kAny> terms(p, row.index);
  const T* const x = static_cast<const T*>(p.x) + row.index * p.x_stride;
  T* const dx = static_cast<T*>(p.dx) + row.index * p.dx_stride;
  const bool has_label = terms.has_label() && part.owns_column(terms.label());
  const V x_of_label = has_label ? V(widen(x[terms.label()])) : V(0);
  const V top = static_cast<const V*>(p.top)[row.index];
  const V spread = static_cast<const V*>(p.spread)[row.index];
  const V share = static_cast<const V*>(p.share)[row.index];
  V gain = read_number<T>(p.dloss, p.dloss_dtype != p.dtype,
                          p.reduction == Reduction::kNone ? row.index : 0);
  if (p.reduction == Reduction::kMean) gain /= *static_cast<const V*>(p.total);
  const RowGradient<T, kAny> gradient{terms, top, spread,
                                      gain * terms.power_factor(share, top + spread), gain};
#pragma unroll
  for (int slot = 0; slot < kPartPacks; ++slot) {
    const std::int64_t pack = part.pack(slot);
    if (!part.owns(slot)) break;
    V v[P::size] = {};
    if (!terms.ignored()) {
      P::unpack(raw[slot], v);
      gradient.apply(row.column(pack), v, [&](int k) { return row.holds(pack, k); });
    }
    store_pack<P>(row, dx, pack, P::pack(v));
  }
  if (has_label && !terms.ignored()) dx[terms.label()] = narrow<T>(gradient.at_label(x_of_label));
}

struct ScaleGradientCall {
  ScaleGradientProblem p;
  int parts;
  unsigned blocks;  // of a PartGrid
};

// Grid: as many CTAs as are resident at a time, since most often there is nothing to do.
template <class T, class Plan>
__global__ void __launch_bounds__(kPartThreads)
    scale_gradient_kernel(const __grid_constant__ ScaleGradientCall call) {
  using Part = RowPart<T, Plan>;
  using P = typename Part::P;
  using V = typename P::Value;
  const ScaleGradientProblem& p = call.p;
  const V by = read_number<T>(p.by, p.by_dtype != p.dtype, 0);
  if (by == 1) return;
  for (unsigned block = blockIdx.x; block < call.blocks; block += gridDim.x) {
    const Part part(p.x, p.stride, p.rows, p.cols, block, call.parts);
    typename P::Raw raw[kPartPacks];
    part.load(p.x, p.stride, raw);
    T* const x = static_cast<T*>(p.x) + part.row.index * p.stride;
#pragma unroll
    for (int slot = 0; slot < kPartPacks; ++slot) {
      if (!part.owns(slot)) break;
      V v[P::size];
      P::unpack(raw[slot], v);
#pragma unroll
      for (V& value : v) value *= by;
      store_pack<P>(part.row, x, part.pack(slot), P::pack(v));
    }
  }
}

// Calls body.operator()<Plan>(grid) for row `plan` of kPartPlans; float64 has that of single
// elements alone.
template <class T, class Body>
void dispatch_part(std::size_t plan, std::int64_t rows, std::int64_t cols, Body&& body) {
  dispatch_index<std::size(kPartPlans)>(plan, [&]<std::size_t kIndex>() {
    using Plan = PartPlanAt<kIndex>;
    if constexpr (!std::is_same_v<T, double> || !Plan::plan.wide) {
      body.template operator()<Plan>(part_grid(Plan::plan, rows, cols, sizeof(T)));
    }
  });
}

template <class T>
void run_loss_backward(const Context& context, const CrossEntropyBackwardProblem& p,
                       std::size_t plan) {
  dispatch_part<T>(plan, p.rows, p.cols, [&]<class Plan>(const PartGrid& grid) {
    const LaunchShape shape{
        .ctas = grid.ctas(),
        .threads = grid.threads,
        .threads_y = grid.threads_y,
        .after_previous = device_limits(context.device.index).architecture >= 90};
    const auto run = [&]<bool kAny>() {
      launch("cross_entropy", context, shape, &loss_backward_kernel<T, kAny, Plan>,
             LossBackwardCall{p, grid.parts});
    };
    if constexpr (Plan::plan.wide) {
      dispatch_bool(needs_any_terms(p), run);
    } else {
      run.template operator()<true>();
    }
  });
}

template <class T>
void run_scale_gradient(const Context& context, const ScaleGradientProblem& p, std::size_t plan) {
  constexpr int kCtas = 8;  // of kPartThreads on one SM
  dispatch_part<T>(plan, p.rows, p.cols, [&]<class Plan>(const PartGrid& grid) {
    check_value(grid.ctas() <= INT32_MAX, "scale_gradient: x has too many rows for one launch");
    const std::int64_t resident =
        std::int64_t{kCtas} * device_limits(context.device.index).processors;
    const LaunchShape shape{.ctas = std::min(grid.ctas(), resident),
                            .threads = grid.threads,
                            .threads_y = grid.threads_y};
    launch("scale_gradient", context, shape, &scale_gradient_kernel<T, Plan>,
           ScaleGradientCall{p, grid.parts, static_cast<unsigned>(grid.ctas())});
  });
}

}  // namespace transformer_kernels::cuda
