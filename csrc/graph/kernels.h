// SPDX-License-Identifier: MIT
// Host declarations that the family's CUDA sources share.
#pragma once

#include "graph/plan.h"
#include "graph/problem.h"

namespace transformer_kernels::cuda {

// `packs`: of 16 bytes, else single elements.
template <class T>
void run_reduce(const Context& context, const ReduceProblem& problem, bool packs);
template <class T>
void run_edges(const Context& context, const EdgeProblem& problem, bool packs);
template <class T>
void run_softmax(const Context& context, const SegmentSoftmaxProblem& problem, bool packs);

}  // namespace transformer_kernels::cuda
