// SPDX-License-Identifier: MIT
// The choice between kernels for packs of 16 bytes and for single elements.
#include <initializer_list>

#include "core/dispatch.h"
#include "core/log.h"
#include "graph/kernels.h"
#include "pointwise/plan.h"

namespace transformer_kernels::cuda {
namespace {

// Packs are whole.
template <class Problem>
bool chosen_packs(const Problem& p, std::int64_t cols, std::initializer_list<Rows> matrices) {
  const bool packs = p.dtype != DType::kFloat64 && cols * size_of(p.dtype) % 16 == 0 &&
                     packs_fit(p.dtype, 2, matrices, {});
  if (log_dispatch()) {
    log_line(concat(p.op, " ", describe(p), ": ",
                    packs ? "packs run" : "packs refused: not 16-byte aligned, elements run"));
  }
  return packs;
}

}  // namespace

// A pack is of one head.
void reduce_segments(const Context& context, const ReduceProblem& p) {
  const bool packs = chosen_packs(p, p.cols / p.heads, {p.x, p.y});
  dispatch_float(p.dtype, [&]<class T>() { run_reduce<T>(context, p, packs); });
}

// Single elements alone have each chosen an edge.
void run_edges(const Context& context, const EdgeProblem& p) {
  const bool packs =
      !p.chosen.present && chosen_packs(p, p.cols / p.heads, {p.a, p.spread ? p.y : p.b});
  dispatch_float(p.dtype, [&]<class T>() { run_edges<T>(context, p, packs); });
}

void segment_softmax(const Context& context, const SegmentSoftmaxProblem& p) {
  const bool packs = chosen_packs(p, p.cols, {p.x, p.dy, p.y});
  dispatch_float(p.dtype, [&]<class T>() { run_softmax<T>(context, p, packs); });
}

}  // namespace transformer_kernels::cuda
