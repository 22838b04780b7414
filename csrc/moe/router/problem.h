// SPDX-License-Identifier: MIT
// The room of the router. This header has its checked arguments, as plain rows.
#pragma once

#include <string>

#include "core/rows.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/moe/router.h"

namespace transformer_kernels {

inline constexpr int kMostChosen = 16;
inline constexpr int kMostExperts = 4096;
inline constexpr std::int64_t kMostRoutedTokens = 2147483647;  // kernels count in 32 bits
inline constexpr int kMostGroups = 32;
inline constexpr int kMostGroupedExperts = 512;
inline constexpr double kRouterEpsilon = 1e-20;  // of a sum that divides

// The random numbers of a call.
struct RouterDraw {
  std::uint64_t seed;
  std::uint64_t offset;
  const std::uint64_t* seed_data;  // CUDA: where not null, both lie there
};

struct RouterProblem {
  DType dtype;
  std::int64_t tokens;
  int experts;
  int chosen;
  Rows x;
  RouterScore score;
  bool renormalize;
  double scale;
  double jitter;
  double noise;
  RouterDraw draw;
  std::int64_t sequences;  // 1 where there are no sums over tokens

  constexpr bool is_noisy() const { return jitter > 0 || noise > 0; }
  constexpr std::int64_t tokens_of_sequence() const { return tokens / sequences; }
  // The Philox counters of a token.
  constexpr int counters() const { return (experts + 3) / 4; }
};

// Numbers of tokens are of the arithmetic's type.
struct MoeRouterForwardProblem : RouterProblem {
  const void* bias;  // may be null
  DType bias_dtype;
  int groups;
  int top_groups;
  void* weights;
  std::int32_t* indices;
  void* importance;  // may be null, as the next
  void* lse;

  // Whether experts are chosen by scores: logits are in the same order.
  constexpr bool chooses_by_score() const { return bias != nullptr || groups > 1; }
};

struct MoeRouterBackwardProblem : RouterProblem {
  const void* dweights;     // may be null, as the next two
  const void* dimportance;  //
  const void* dlse;         //
  const std::int32_t* indices;
  Rows dx;
};

std::string describe(const MoeRouterForwardProblem& problem);
std::string describe(const MoeRouterBackwardProblem& problem);

namespace cpu {
void moe_router_forward(const Context& context, const MoeRouterForwardProblem& problem);
void moe_router_backward(const Context& context, const MoeRouterBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void moe_router_forward(const Context& context, const MoeRouterForwardProblem& problem);
void moe_router_backward(const Context& context, const MoeRouterBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
