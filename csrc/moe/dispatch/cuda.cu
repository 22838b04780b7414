// SPDX-License-Identifier: MIT
#include "core/dispatch.h"
#include "moe/dispatch/kernels_cuda.h"

namespace transformer_kernels::cuda {

void moe_spread(const Context& context, const SpreadProblem& p) {
  dispatch_float(p.dtype, [&]<class T>() { run_move<T>(context, p); });
}

void moe_combine(const Context& context, const CombineProblem& p) {
  dispatch_float(p.dtype, [&]<class T>() { run_move<T>(context, p); });
}

}  // namespace transformer_kernels::cuda
