// SPDX-License-Identifier: MIT
// The choice between kernels for packs of 16 bytes and for single elements.
#include "core/dispatch.h"
#include "core/log.h"
#include "rope/kernels.h"
#include "rope/plan.h"

namespace transformer_kernels::cuda {

void rope(const Context& context, const RopeProblem& p) {
  const bool packs = packs_fit(p);
  if (log_dispatch()) {
    log_line(concat("rope ", describe(p), ": ",
                    packs ? "packs run" : "packs refused: not 16-byte aligned, elements run"));
  }
  dispatch_float(p.dtype, [&]<class T>() { run_rope<T>(context, p, packs); });
}

}  // namespace transformer_kernels::cuda
