// SPDX-License-Identifier: MIT
// The router on CUDA. Sums over tokens read the logits a second time, mostly from L2: a sum in the
// order of a grid of warps would depend on that grid.
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "moe/router/kernels_cuda.h"

namespace transformer_kernels::cuda {

void moe_router_forward(const Context& context, const MoeRouterForwardProblem& p) {
  const std::int64_t size = size_of(accumulate_dtype(p.dtype));
  const bool sums = p.importance != nullptr;
  const std::int64_t partials = p.sequences * pieces_of_sequence(p) * p.experts;
  const Scratch scratch("moe_router", context, sums ? (2 * p.tokens + partials) * size : 0);
  auto* const memory = scratch.as<std::byte>();
  RouterShares shares;
  if (sums) shares = {memory, memory + p.tokens * size};
  dispatch_float(p.dtype, [&]<class T>() {
    if (p.tokens > 0) run_router<T>(context, p, shares);
    if (sums) run_importance<T>(context, p, shares, memory + 2 * p.tokens * size);
  });
}

void moe_router_backward(const Context& context, const MoeRouterBackwardProblem& p) {
  dispatch_float(p.dtype, [&]<class T>() { run_router_gradient<T>(context, p); });
}

}  // namespace transformer_kernels::cuda
