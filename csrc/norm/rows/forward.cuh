// SPDX-License-Identifier: MIT
// The one-shot engine, forward pass of the norms on CUDA: each group of threads takes its row(s)
// once. It reads x (and the residual) once, writes y (and the sum) once, and has one barrier a row.
// See core/cuda/row.cuh.
#pragma once

#include "core/cuda/launch.cuh"
#include "core/cuda/occupancy.h"
#include "core/cuda/row.cuh"
#include "norm/branch_pack.cuh"
#include "norm/dropout_problem.h"
#include "norm/kernels.h"
#include "norm/moments.cuh"
#include "pointwise/dropout_numbers.cuh"
#include "pointwise/pack.cuh"

namespace transformer_kernels::cuda {

// From each warp's moments to the rows'.
template <class Plan, bool kCenter, class T, class V>
__device__ __forceinline__ void merge_over_rows(const Row<Plan, T>& row,
                                                RowScratch<Plan, Moments<V>>& scratch,
                                                Moments<V>* moments, std::int64_t cols) {
  constexpr int kWarps = Plan::plan.warps();
  constexpr int kCluster = Plan::plan.cluster;
  if constexpr (kWarps > 1) {
    share_stack_in_group(row, scratch, moments);
    const int w = threadIdx.x % kWarps;
    const V count = static_cast<V>(row.elements_of_warp(w));
    const V total = static_cast<V>(row.elements());
#pragma unroll
    for (int r = 0; r < row.kStack; ++r) {
      moments[r] = merge_moments<kWarps, kCenter>(scratch.of_warp[row.group][r][w], count, total);
    }
  }
  if constexpr (kCluster > 1) {
    share_stack_in_cluster(row, scratch, moments);
    const int c = threadIdx.x % kCluster;
    const V count = static_cast<V>(row.elements_of_cta(c));
#pragma unroll
    for (int r = 0; r < row.kStack; ++r) {
      moments[r] =
          merge_moments<kCluster, kCenter>(scratch.of_cta[r][c], count, static_cast<V>(cols));
    }
  }
}

// The plans are cut to sm_90's registers to the last one. The compiler needs a few more for sm_75,
// and for sm_100 and later.
constexpr int oneshot_ctas(const RowPlan& plan) {
  const bool needs_more = kArchitecture < 80 || kArchitecture >= 100;
  return needs_more ? ctas_with_more_registers(plan.cta_threads(), plan.min_ctas) : plan.min_ctas;
}

__device__ __forceinline__ const NormForwardProblem& norm_of(const NormForwardProblem& p) {
  return p;
}
__device__ __forceinline__ const NormForwardProblem& norm_of(const DropoutNormForwardProblem& p) {
  return p.norm;
}

// With x and y of X, 16 bits, beside a residual and a sum of float32.
template <class X>
struct MixedNormForwardProblem : DropoutNormForwardProblem {};

// x becomes dropout(x + x_bias) in a pack that begins with `element`, in column `col`.
template <class T, int kSize, class V>
__device__ __forceinline__ void drop_pack(const DropoutForwardProblem& p, std::int64_t element,
                                          std::int64_t col, V (&x)[kSize]) {
  uint4 numbers{};
  if (!p.draw.keeps_all() && !p.draw.keeps_none()) {
    numbers = DropoutNumbers(p.draw).of_pack<kSize>(element);
  }
  if (p.bias != nullptr) {
    V bias[kSize];
    load_bias<T>(p.bias, p.bias_dtype != p.dtype, col, kSize, bias);
#pragma unroll
    for (int k = 0; k < kSize; ++k) x[k] += bias[k];
  }
  drop<0>(numbers, p.draw.below, static_cast<V>(p.draw.scale), x);
}

// T: storage of the matrices, but for what a mixed problem says. Problem: of a norm alone, or with
// dropout before the residual.
// Grid: ceil(rows / plan.cta_rows()) * cluster.
template <class T, bool kCenter, bool kResidual, class Plan, class Problem>
__global__ void __launch_bounds__(Plan::plan.cta_threads(), oneshot_ctas(Plan::plan))
    norm_forward_oneshot_kernel(const __grid_constant__ Problem problem) {
  constexpr bool kDropout = !std::is_same_v<Problem, NormForwardProblem>;
  using X = branch_t<Problem, T>;
  constexpr bool kMixed = !std::is_same_v<X, T>;
  const NormForwardProblem& p = norm_of(problem);
  using RowT = Row<Plan, T>;
  using P = Pack<T, RowT::kPackSize>;
  using V = typename P::Value;
  using Index = typename RowT::Index;
  constexpr int kSize = P::size;
  // Tensors in the stage, the residual last. A narrow x goes past it.
  constexpr int kStaged = kResidual && !kMixed ? 2 : 1;
  static_assert(!kMixed || (kResidual && Plan::plan.wide && !RowT::kShifted));
  // float32 parameters beside 16-bit rows take more registers than an early read is worth.
  constexpr bool kPrefetch = Plan::plan.prefetch;
  const bool float_parameters =
      (Plan::kEntry.traits & kEqualParameters) == 0 && has_float_parameters<T>(p);

  constexpr int kStack = Plan::plan.stack;
  static_assert(kStack == 1 || (Plan::plan.bulk && Plan::plan.packs == 0));

  __shared__ RowScratch<Plan, Moments<V>> scratch;
  RowT row(p.rows, p.cols);
  const auto at = [&](const Rows& m, int r) {
    return static_cast<T*>(m.data) + (row.index + r) * m.stride;
  };
  row.align_to(at(p.x, 0));
  const std::int64_t slice = row.origin();

  announce_to_cluster(scratch);
  if constexpr (Plan::plan.bulk) {
    const auto source = [&](const Rows& m) {
      return RowSource<T>(row, m.data, m.stride, p.rows, p.cols);
    };
    if constexpr (kMixed) {
      fetch_rows(row, scratch, p.cols, source(p.residual));
    } else if constexpr (kResidual) {
      fetch_rows(row, scratch, p.cols, source(p.x), source(p.residual));
    } else {
      fetch_rows(row, scratch, p.cols, source(p.x));
    }
  }
  if (!row.inside) return;

  const auto load_affine = [&](auto& affine, Index pack) {
    if constexpr (RowT::kShifted) {
      affine.load_shifted(p, row.column(pack));
    } else {
      affine.load(p, slice + row.column(pack));
    }
  };
  Affine<T, kSize> ahead[kPrefetch ? Plan::plan.packs : 1];
  if (kPrefetch && !float_parameters) {
    row.for_each_pack([&](int slot, Index pack) { load_affine(ahead[slot], pack); });
  }
  using Branch = BranchPack<X>;
  const auto of_branch = [&](const Rows& m, int r, Index pack) {
    return static_cast<X*>(m.data) + (row.index + r) * m.stride + slice + row.column(pack);
  };
  typename Branch::Raw branch[kMixed && Plan::plan.packs > 0 ? Plan::plan.packs : 1];
  if constexpr (kMixed && Plan::plan.packs > 0) {
    row.for_each_pack(
        [&](int slot, Index pack) { branch[slot] = Branch::load(of_branch(p.x, 0, pack)); });
  }
  if constexpr (Plan::plan.bulk) wait_for_row(row, scratch);

  typename P::Raw kept[Plan::plan.packs > 0 ? Plan::plan.packs : 1];
  const auto staged = [&](int tensor, int r, Index pack) {
    return stage_of(row, p.cols, tensor, kStaged, r) + static_cast<std::uint32_t>(pack) * 16;
  };
  const auto read = [&](const Rows& m, int tensor, int r, Index pack) {
    if constexpr (Plan::plan.bulk) {
      return load_shared(staged(tensor, r, pack));
    } else {
      return load_pack<P>(row, at(m, r) + slice, pack);
    }
  };
  // The values that are normalised, rounded to T.
  const auto peek = [&](int r, int slot, Index pack) {
    typename P::Raw raw{};
    if constexpr (!kMixed) raw = read(p.x, 0, r, pack);
    if constexpr (kResidual) {
      V a[kSize], b[kSize];
      if constexpr (!kMixed) {
        P::unpack(raw, a);
      } else if constexpr (Plan::plan.packs > 0) {
        Branch::unpack(branch[slot], a);
      } else {
        Branch::unpack(Branch::load(of_branch(p.x, r, pack)), a);
      }
      P::unpack(read(p.residual, kStaged - 1, r, pack), b);
      if constexpr (kDropout) {
        const std::int64_t col = slice + row.column(pack);
        drop_pack<T>(problem.dropout, (row.index + r) * p.cols + col, col, a);
      }
#pragma unroll
      for (int k = 0; k < kSize; ++k) a[k] += b[k];
      raw = P::pack(a);
    }
    return raw;
  };
  const auto take = [&](int r, int slot, Index pack) {
    const typename P::Raw raw = peek(r, slot, pack);
    if constexpr (kResidual) {
      store_pack<P>(row, at(p.sum, r) + slice, pack, raw);
      if constexpr (Plan::plan.bulk && Plan::plan.packs == 0) store_shared(staged(0, r, pack), raw);
    }
    return raw;
  };
  // Registers: all packs at once, so that their loads are under way together.
  const auto take_all = [&] {
    if constexpr (Plan::plan.packs > 0) {
      row.for_each_pack([&](int slot, Index pack) { kept[slot] = take(0, slot, pack); });
    }
  };
  const auto first_touch = [&](int r, int slot, Index pack) {
    if constexpr (Plan::plan.packs > 0) {
      return kept[slot];
    } else {
      return take(r, slot, pack);
    }
  };
  // Every later touch.
  const auto again = [&](int r, int slot, Index pack) -> typename P::Raw {
    if constexpr (Plan::plan.packs > 0) {
      return kept[slot];
    } else if constexpr (Plan::plan.bulk) {
      return load_shared(staged(0, r, pack));
    } else {
      return reload_pack<P>(row, at(kResidual ? p.sum : p.x, r) + slice, pack);
    }
  };

  // Out of the first pack that the warp owns as a whole; 0 for a warp that owns none.
  const auto anchor_of = [&](int r) {
    V value[kSize] = {};
    if (row.thread < row.packs) {
      if constexpr (Plan::plan.packs > 0) {
        P::unpack(kept[0], value);
      } else {
        P::unpack(peek(r, 0, row.thread), value);
      }
    }
    V anchor = anchor_in_pack<kSize>(value);
    int lane = 0;
    if constexpr (RowT::kShifted) {
      const bool reaches_out = row.thread < row.packs && !row.holds(row.thread);
      // An element of the row at least, where no pack lies inside it as a whole.
      const int inside = row.thread == 0 && row.first == 0 ? row.phase : 0;
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (reaches_out && k == inside) anchor = value[k];
      }
      lane = row.warp() == 0 && row.packs > 2 ? 1 : 0;
    }
    return __shfl_sync(kAllLanes, anchor, lane);
  };

  // Calls `body` with each element that this thread owns, of packs that `read_pack` reads.
  const auto for_each_value = [&](auto&& read_pack, auto&& body) {
    row.for_each_pack([&](int slot, Index pack) {
      V value[kSize];
      P::unpack(read_pack(slot, pack), value);
      row.for_each_element(pack, [&](int k) { body(value[k]); });
    });
  };

  Moments<V> moments[kStack] = {};
  const V count = static_cast<V>(row.elements_of_warp(row.warp()));
#pragma unroll
  for (int r = 0; r < kStack; ++r) {
    if (r >= row.count) break;
    take_all();
    const auto first = [&](int slot, Index pack) { return first_touch(r, slot, pack); };
    const auto later = [&](int slot, Index pack) { return again(r, slot, pack); };
    moments[r] = moments_of_warp<kCenter>(
        kCenter ? anchor_of(r) : V(0), count, [&](auto&& body) { for_each_value(first, body); },
        [&](auto&& body) { for_each_value(later, body); });
  }
  merge_over_rows<Plan, kCenter>(row, scratch, moments, p.cols);

  V rstd[kStack];
#pragma unroll
  for (int r = 0; r < kStack; ++r) {
    const V per_element = p.cols > 0 ? reciprocal(static_cast<V>(p.cols)) : V(NAN);
    rstd[r] = reciprocal_deviation(moments[r], per_element, p.eps);
    if (row.thread == 0 && row.rank == 0 && r < row.count) {
      if (kCenter && p.mean) {
        static_cast<V*>(p.mean)[row.index + r] = p.cols > 0 ? moments[r].whole_mean() : V(NAN);
      }
      if (p.rstd) static_cast<V*>(p.rstd)[row.index + r] = rstd[r];
    }
  }

  const auto finish = [&](int slot, Index pack, const auto& affine) {
#pragma unroll
    for (int r = 0; r < kStack; ++r) {
      if (r >= row.count) break;
      V value[kSize];
      P::unpack(again(r, slot, pack), value);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        value[k] = fma(value[k] - moments[r].anchor, rstd[r], moments[r].offset(rstd[r]));
      }
      affine.apply(p, value);
      if constexpr (kMixed) {
        Branch::store(of_branch(p.y, r, pack), Branch::pack(value));
      } else {
        store_pack<P>(row, at(p.y, r) + slice, pack, P::pack(value));
      }
    }
  };
  if constexpr (sizeof(T) == 2) {
    if (float_parameters) {
      row.for_each_pack([&](int slot, Index pack) {
        Affine<float, kSize> affine;
        load_affine(affine, pack);
        finish(slot, pack, affine);
      });
      return;
    }
  }
  if constexpr ((Plan::kEntry.traits & kFloatParameters) == 0) {
    row.for_each_pack([&](int slot, Index pack) {
      if constexpr (!kPrefetch) load_affine(ahead[0], pack);
      finish(slot, pack, ahead[kPrefetch ? slot : 0]);
    });
  }
}

template <class Plan>
LaunchShape oneshot_shape(const RowLoad& load) {
  return {.ctas = divide_up(load.rows, Plan::plan.cta_rows()) * Plan::plan.cluster,
          .threads = Plan::plan.cta_threads(),
          .cluster = Plan::plan.cluster,
          .shared_bytes = static_cast<std::size_t>(staged_bytes(Plan::plan, load))};
}

template <class T, auto kRuns>
void run_norm_forward_oneshot(const Context& context, const NormForwardProblem& p,
                              std::size_t plan) {
  dispatch_norm_forward<T, kRuns>(p, plan, [&]<class Plan, bool kCenter, bool kResidual>() {
    if constexpr (!std::is_same_v<T, double> || moves_single_elements(Plan::kEntry)) {
      launch(p.op, context, oneshot_shape<Plan>(row_load(p)),
             &norm_forward_oneshot_kernel<T, kCenter, kResidual, Plan, NormForwardProblem>, p);
    }
  });
}

template <class T>
void run_norm_forward_rows(const Context& context, const NormForwardProblem& p, std::size_t plan) {
  run_norm_forward_oneshot<T, is_rows>(context, p, plan);
}

template <class T>
void run_norm_forward_bulk(const Context& context, const NormForwardProblem& p, std::size_t plan) {
  run_norm_forward_oneshot<T, is_bulk>(context, p, plan);
}

template <class T, auto kRuns>
void run_dropout_norm_forward_oneshot(const Context& context, const DropoutNormForwardProblem& p,
                                      std::size_t plan) {
  dispatch_index<std::size(kDropoutNormForwardPlans)>(plan, [&]<std::size_t kIndex>() {
    using Plan = DropoutNormForwardPlanAt<kIndex>;
    if constexpr (kRuns(Plan::kEntry) &&
                  (!std::is_same_v<T, double> || moves_single_elements(Plan::kEntry))) {
      dispatch_bool(p.norm.center, [&]<bool kCenter>() {
        launch(p.norm.op, context, oneshot_shape<Plan>(row_load(p.norm)),
               &norm_forward_oneshot_kernel<T, kCenter, true, Plan, DropoutNormForwardProblem>, p);
      });
    }
  });
}

template <class T>
void run_dropout_norm_forward_rows(const Context& context, const DropoutNormForwardProblem& p,
                                   std::size_t plan) {
  run_dropout_norm_forward_oneshot<T, is_rows>(context, p, plan);
}

template <class T>
void run_dropout_norm_forward_bulk(const Context& context, const DropoutNormForwardProblem& p,
                                   std::size_t plan) {
  run_dropout_norm_forward_oneshot<T, is_bulk>(context, p, plan);
}

template <class X, auto kRuns>
void run_mixed_norm_forward_oneshot(const Context& context, const DropoutNormForwardProblem& p,
                                    std::size_t plan) {
  using Problem = MixedNormForwardProblem<X>;
  dispatch_index<std::size(kMixedNormForwardPlans)>(plan, [&]<std::size_t kIndex>() {
    using Plan = MixedNormForwardPlanAt<kIndex>;
    if constexpr (kRuns(Plan::kEntry)) {
      dispatch_bool(p.norm.center, [&]<bool kCenter>() {
        launch(p.norm.op, context, oneshot_shape<Plan>(mixed_row_load(p)),
               &norm_forward_oneshot_kernel<float, kCenter, true, Plan, Problem>, Problem{p});
      });
    }
  });
}

template <class X>
void run_mixed_norm_forward_rows(const Context& context, const DropoutNormForwardProblem& p,
                                 std::size_t plan) {
  run_mixed_norm_forward_oneshot<X, is_rows>(context, p, plan);
}

template <class X>
void run_mixed_norm_forward_bulk(const Context& context, const DropoutNormForwardProblem& p,
                                 std::size_t plan) {
  run_mixed_norm_forward_oneshot<X, is_bulk>(context, p, plan);
}

}  // namespace transformer_kernels::cuda
