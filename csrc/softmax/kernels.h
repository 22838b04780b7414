// SPDX-License-Identifier: MIT
// The CUDA engines of softmax, each in a folder of its own: rows/, chunk/, direct/. Each is
// compiled in a unit of its own for each storage type T (instances.cmake), for either pass's
// Problem, and runs row `plan` of its table. This header needs no CUDA header.
#pragma once

#include "core/dispatch.h"
#include "softmax/chunk/plan.h"
#include "softmax/plan.h"

namespace transformer_kernels::cuda {

template <class T, class Problem>
void run_softmax_direct(const Context& context, const Problem& p, std::size_t plan);
template <class T, class Problem>
void run_softmax_rows(const Context& context, const Problem& p, std::size_t plan);
template <class T, class Problem>
void run_softmax_bulk(const Context& context, const Problem& p, std::size_t plan);
template <class T, class Problem>
void run_softmax_chunk(const Context& context, const Problem& p, std::size_t plan);

// ------------------------------------------------------------------ for the units

template <class Problem>
inline constexpr const auto& kSoftmaxPlans = kSoftmaxForwardPlans;
template <>
inline constexpr const auto& kSoftmaxPlans<SoftmaxBackwardProblem> = kSoftmaxBackwardPlans;

template <class Problem>
inline constexpr const auto& kSoftmaxChunks = kSoftmaxForwardChunks;
template <>
inline constexpr const auto& kSoftmaxChunks<SoftmaxBackwardProblem> = kSoftmaxBackwardChunks;

// A row of the plan table as a type, which kernels take as a template argument.
template <class Problem, std::size_t kIndex>
struct SoftmaxPlanAt {
  static constexpr SoftmaxPlan kEntry = kSoftmaxPlans<Problem>[kIndex];
  static constexpr auto plan = std::get<kEntry.plan.index()>(kEntry.plan);
};

// Calls body.operator()<Plan>() for row `plan` of the table, of which kRuns(row) says whether the
// unit has its kernels.
template <auto kRuns, class Problem, class Body>
void dispatch_softmax(const Problem&, std::size_t plan, Body&& body) {
  dispatch_index<std::size(kSoftmaxPlans<Problem>)>(plan, [&]<std::size_t kIndex>() {
    using Plan = SoftmaxPlanAt<Problem, kIndex>;
    if constexpr (kRuns(Plan::kEntry)) body.template operator()<Plan>();
  });
}

}  // namespace transformer_kernels::cuda
