// SPDX-License-Identifier: MIT
// Host declarations that the router's CUDA sources share.
#pragma once

#include "core/rounding.h"
#include "moe/router/problem.h"

namespace transformer_kernels::cuda {

// The sums over tokens read two numbers of each token: softmax is exp(z - shift) * factor there,
// any other score times factor. Of the arithmetic's type, or null where there are no sums.
struct RouterShares {
  void* shift = nullptr;
  void* factor = nullptr;
};

template <class T>
void run_router(const Context& context, const MoeRouterForwardProblem& problem,
                const RouterShares& shares);
template <class T>
void run_importance(const Context& context, const MoeRouterForwardProblem& problem,
                    const RouterShares& shares, void* partial);
template <class T>
void run_router_gradient(const Context& context, const MoeRouterBackwardProblem& problem);

// Tokens whose scores a CTA sums.
inline constexpr int kImportanceTokens = 128;

constexpr std::int64_t pieces_of_sequence(const RouterProblem& p) {
  return divide_up(p.tokens_of_sequence(), kImportanceTokens);
}

}  // namespace transformer_kernels::cuda
