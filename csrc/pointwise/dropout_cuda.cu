// SPDX-License-Identifier: MIT
// The choice between kernels for packs of 16 bytes and for single elements.
#include "core/dispatch.h"
#include "core/log.h"
#include "pointwise/dropout_kernels.h"
#include "pointwise/plan.h"

namespace transformer_kernels::cuda {
namespace {

// A row begins with the numbers of a counter of its own.
template <class Problem>
bool rows_begin_counters(const Problem& p) {
  return p.rows <= 1 || p.cols % 8 == 0;
}

bool has_packs(const DropoutForwardProblem& p) {
  return packs_fit(p.dtype, p.rows, {p.x, p.residual, p.y}, {p.bias});
}
bool has_packs(const DropoutBackwardProblem& p) {
  return packs_fit(p.dtype, p.rows, {p.dy, p.dx}, {});
}

// Why packs cannot be used, or null.
template <class Problem>
const char* packs_refusal(const Problem& p) {
  if (p.dtype == DType::kFloat64) return "float64 moves single elements";
  if (!rows_begin_counters(p)) return "columns are no multiple of 8";
  return has_packs(p) ? nullptr : "not 16-byte aligned";
}

template <class Problem>
void run(const Context& context, const Problem& p) {
  const char* const refusal = packs_refusal(p);
  const bool packs = refusal == nullptr;
  if (log_dispatch()) {
    log_line(concat(p.op, " ", describe(p), ": ",
                    packs ? "packs run" : concat("packs refused: ", refusal, ", elements run")));
  }
  dispatch_float(p.dtype, [&]<class T>() { run_dropout<T>(context, p, packs); });
}

}  // namespace

void dropout_forward(const Context& context, const DropoutForwardProblem& p) { run(context, p); }
void dropout_backward(const Context& context, const DropoutBackwardProblem& p) { run(context, p); }

}  // namespace transformer_kernels::cuda
