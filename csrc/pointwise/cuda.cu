// SPDX-License-Identifier: MIT
// The choice between kernels for packs of 16 bytes and for single elements.
#include "core/dispatch.h"
#include "core/log.h"
#include "pointwise/kernels.h"
#include "pointwise/plan.h"

namespace transformer_kernels::cuda {
namespace {

bool has_packs(const PointwiseForwardProblem& p) {
  return packs_fit(p.dtype, p.rows, {p.x, p.up, p.y}, {p.bias, p.up_bias});
}
bool has_packs(const PointwiseBackwardProblem& p) {
  return packs_fit(p.dtype, p.rows, {p.dy, p.x, p.up, p.dx, p.dup, p.y}, {p.bias, p.up_bias});
}

template <class Problem>
void run(const Context& context, const Problem& p) {
  const bool packs = p.dtype != DType::kFloat64 && has_packs(p);
  if (log_dispatch()) {
    log_line(concat(name_of(p.op), " ", describe(p), ": ",
                    packs ? "packs run" : "packs refused: not 16-byte aligned, elements run"));
  }
  dispatch_float(p.dtype, [&]<class T>() { run_pointwise<T>(context, p, packs); });
}

}  // namespace

void pointwise_forward(const Context& context, const PointwiseForwardProblem& p) {
  run(context, p);
}

void pointwise_backward(const Context& context, const PointwiseBackwardProblem& p) {
  run(context, p);
}

}  // namespace transformer_kernels::cuda
