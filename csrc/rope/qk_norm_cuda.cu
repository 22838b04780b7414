// SPDX-License-Identifier: MIT
// The choice between kernels for packs of 16 bytes and for single elements.
#include "core/dispatch.h"
#include "core/log.h"
#include "rope/qk_norm_kernels.h"
#include "rope/qk_norm_plan.h"

namespace transformer_kernels::cuda {
namespace {

bool are_aligned(std::initializer_list<const void*> weights) {
  return std::ranges::all_of(weights, [](const void* weight) {
    return reinterpret_cast<std::uintptr_t>(weight) % 16 == 0;
  });
}

bool packs_of(const QkNormForwardProblem& p) {
  return has_packs(p.rope) && are_aligned({p.q_weight, p.k_weight});
}
bool packs_of(const QkNormBackwardProblem& p) {
  RopeProblem inputs = p.rope;
  inputs.q = p.q;
  inputs.k = p.k;
  return has_packs(p.rope) && has_packs(inputs) && are_aligned({p.q_weight, p.k_weight});
}

template <class Problem>
void run(const Context& context, const Problem& p) {
  constexpr std::int64_t kMostRows = (std::int64_t{1} << 32) - 1;
  check_value(p.rope.tokens() * p.rope.heads() <= kMostRows, "qk_norm: q and k have ",
              p.rope.tokens() * p.rope.heads(), " rows, expected at most ", kMostRows);
  const bool packs = packs_of(p);
  if (log_dispatch()) {
    log_line(concat("qk_norm ", describe(p), ": ",
                    packs ? "packs run" : "packs refused: not 16-byte aligned, elements run"));
  }
  dispatch_float(p.rope.dtype, [&]<class T>() { run_qk_norm<T>(context, p, packs); });
}

}  // namespace

void qk_norm_forward(const Context& context, const QkNormForwardProblem& p) { run(context, p); }
void qk_norm_backward(const Context& context, const QkNormBackwardProblem& p) { run(context, p); }

}  // namespace transformer_kernels::cuda
