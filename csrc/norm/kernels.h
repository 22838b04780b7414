// SPDX-License-Identifier: MIT
// The CUDA engines of the norms, each in a folder of its own: rows/, ring/, chunk/, direct/,
// plain/. Each is compiled in a unit of its own for each storage type T of the matrices
// (instances.cmake), and runs row `plan` of its plan table. This header needs no CUDA header.
#pragma once

#include <iterator>

#include "core/dispatch.h"
#include "norm/dropout_plan.h"
#include "norm/plan.h"

namespace transformer_kernels::cuda {

template <class T>
void run_norm_forward_direct(const Context& context, const NormForwardProblem& p, std::size_t plan);
template <class T>
void run_norm_forward_rows(const Context& context, const NormForwardProblem& p, std::size_t plan);
template <class T>
void run_norm_forward_bulk(const Context& context, const NormForwardProblem& p, std::size_t plan);
template <class T>
void run_norm_forward_ring(const Context& context, const NormForwardProblem& p, std::size_t plan);
template <class T>
void run_norm_forward_chunk(const Context& context, const NormForwardProblem& p, std::size_t plan);

// `plan` is a row of the table of dropout_plan.h.
template <class T>
void run_dropout_norm_forward_rows(const Context& context, const DropoutNormForwardProblem& p,
                                   std::size_t plan);
template <class T>
void run_dropout_norm_forward_bulk(const Context& context, const DropoutNormForwardProblem& p,
                                   std::size_t plan);

// For an x of X, 16 bits, beside sums of float32. `plan` is a row of the tables of mixed norms.
template <class X>
void run_mixed_norm_forward_rows(const Context& context, const DropoutNormForwardProblem& p,
                                 std::size_t plan);
template <class X>
void run_mixed_norm_forward_bulk(const Context& context, const DropoutNormForwardProblem& p,
                                 std::size_t plan);
template <class X>
void run_mixed_norm_backward_ring(const Context& context, const DropoutNormBackwardProblem& p,
                                  std::size_t plan);

// Mixed norms that fit no plan, through float32 in scratch memory.
void run_mixed_norm_forward_converted(const Context& context, const DropoutNormForwardProblem& p);
void run_mixed_norm_backward_converted(const Context& context, const DropoutNormBackwardProblem& p);

template <class T>
void run_norm_backward_direct(const Context& context, const NormBackwardProblem& p,
                              std::size_t plan);
template <class T>
void run_norm_backward_plain(const Context& context, const NormBackwardProblem& p);
template <class T>
void run_norm_backward_ring(const Context& context, const NormBackwardProblem& p, std::size_t plan);
template <class T>
void run_norm_backward_chunk(const Context& context, const NormBackwardProblem& p,
                             std::size_t plan);

// With dropout behind it, and a gradient of the sum.
template <class T>
void run_dropout_norm_backward_ring(const Context& context, const DropoutNormBackwardProblem& p,
                                    std::size_t plan);

// dbias alone, as a pass of its own over dy.
template <class T>
void sum_norm_bias_gradient(const Context& context, const NormBackwardProblem& p);

// ------------------------------------------------------------------ for the units

// Rows of the plan tables as types, which kernels take as template arguments.
template <std::size_t kIndex>
struct NormForwardPlanAt {
  static constexpr NormForwardPlan kEntry = kNormForwardPlans[kIndex];
  static constexpr auto plan = std::get<kEntry.plan.index()>(kEntry.plan);
};
template <std::size_t kIndex>
struct DropoutNormForwardPlanAt {
  static constexpr NormForwardPlan kEntry = kDropoutNormForwardPlans[kIndex];
  static constexpr auto plan = std::get<RowPlan>(kEntry.plan);
};
template <std::size_t kIndex>
struct MixedNormForwardPlanAt {
  static constexpr NormForwardPlan kEntry = kMixedNormForwardPlans[kIndex];
  static constexpr auto plan = std::get<RowPlan>(kEntry.plan);
};
template <std::size_t kIndex>
struct MixedNormBackwardPlanAt {
  static constexpr RingPlan plan = kMixedNormBackwardPlans[kIndex];
};
template <std::size_t kIndex>
struct NormBackwardPlanAt {
  static constexpr NormBackwardPlan kEntry = kNormBackwardPlans[kIndex];
  static constexpr auto plan = std::get<kEntry.plan.index()>(kEntry.plan);
};
template <std::size_t kIndex>
struct DropoutNormBackwardPlanAt {
  static constexpr RingPlan plan = kDropoutNormBackwardPlans[kIndex];
};

// Whether rows of T with parameters of either dtype may have the wanted traits.
template <class T>
constexpr bool traits_suit(unsigned wanted, bool center, bool residual) {
  const auto suits = [&](std::int64_t parameter_bytes) {
    return (wanted & ~norm_traits(center, residual, sizeof(T), parameter_bytes)) == 0;
  };
  return suits(sizeof(T)) || (sizeof(T) == 2 && suits(sizeof(float)));
}

// Calls body.operator()<Plan, kCenter, kResidual>() for row `plan` of the table, of which
// kRuns(row) says whether the unit has its kernels. Combinations that the row's traits rule out are
// not compiled.
template <class T, auto kRuns, class Body>
void dispatch_norm_forward(const NormForwardProblem& p, std::size_t plan, Body&& body) {
  dispatch_index<std::size(kNormForwardPlans)>(plan, [&]<std::size_t kIndex>() {
    using Plan = NormForwardPlanAt<kIndex>;
    if constexpr (kRuns(Plan::kEntry)) {
      dispatch_bool(p.center, [&]<bool kCenter>() {
        dispatch_bool(p.residual.data != nullptr, [&]<bool kResidual>() {
          if constexpr (traits_suit<T>(Plan::kEntry.traits, kCenter, kResidual)) {
            body.template operator()<Plan, kCenter, kResidual>();
          }
        });
      });
    }
  });
}

// dispatch_norm_forward() for the backward table; kResidual: there is a gradient of the sum.
template <class T, auto kRuns, class Body>
void dispatch_norm_backward(const NormBackwardProblem& p, std::size_t plan, Body&& body) {
  dispatch_index<std::size(kNormBackwardPlans)>(plan, [&]<std::size_t kIndex>() {
    using Plan = NormBackwardPlanAt<kIndex>;
    if constexpr (kRuns(Plan::kEntry)) {
      dispatch_bool(p.center, [&]<bool kCenter>() {
        dispatch_bool(p.dsum.data != nullptr, [&]<bool kResidual>() {
          if constexpr (traits_suit<T>(Plan::kEntry.traits, kCenter, kResidual)) {
            body.template operator()<Plan, kCenter, kResidual>();
          }
        });
      });
    }
  });
}

// Whether weight and bias are floats beside 16-bit rows.
template <class T, class Problem>
constexpr bool has_float_parameters(const Problem& p) {
  return sizeof(T) == 2 && p.weight_dtype == DType::kFloat32;
}

}  // namespace transformer_kernels::cuda
