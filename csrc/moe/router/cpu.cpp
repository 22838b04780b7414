// SPDX-License-Identifier: MIT
// The router on the CPU: tokens in parallel. Scores are summed over pieces of a sequence, whose
// bounds do not depend on the threads, and then over the pieces in their order.
#include <algorithm>

#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "moe/router/kernels.h"

namespace transformer_kernels::cpu {
namespace {

constexpr std::int64_t kPieceTokens = 256;

const RouterKernels& kernels() {
  constexpr const RouterKernels* kTables[] = TFK_PER_ISA(router_kernels);
  return *kTables[static_cast<int>(isa())];
}

std::int64_t pieces_of_sequence(const RouterProblem& p) {
  return divide_up(p.tokens_of_sequence(), kPieceTokens);
}

template <class A>
void sum_pieces(const Context& context, const MoeRouterForwardProblem& p, const A* sums) {
  const std::int64_t pieces = pieces_of_sequence(p);
  const auto sum_sequence = [&](std::int64_t q) {
    A* const total = static_cast<A*>(p.importance) + q * p.experts;
    std::fill_n(total, p.experts, A{0});
    for (std::int64_t piece = q * pieces; piece < (q + 1) * pieces; ++piece) {
      for (int j = 0; j < p.experts; ++j) total[j] += sums[piece * p.experts + j];
    }
  };
  parallel_for(context, p.sequences, rows_per_range(pieces * p.experts),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t q = begin; q < end; ++q) sum_sequence(q);
               });
}

}  // namespace

void moe_router_forward(const Context& context, const MoeRouterForwardProblem& p) {
  log_cpu_kernel("moe_router", p);
  const auto run = kernels().forward[static_cast<int>(p.dtype)];
  const std::int64_t pieces = pieces_of_sequence(p);
  const std::int64_t size = size_of(accumulate_dtype(p.dtype));
  const std::int64_t count = p.sequences * pieces;
  const AlignedScratch sums(context, p.importance == nullptr ? 0 : count * p.experts * size);
  const auto run_piece = [&](std::int64_t piece) {
    const std::int64_t first = piece / pieces * p.tokens_of_sequence();
    const std::int64_t begin = piece % pieces * kPieceTokens;
    const std::int64_t end = std::min(begin + kPieceTokens, p.tokens_of_sequence());
    auto* const own = static_cast<std::byte*>(sums.data()) + piece * p.experts * size;
    run(p, first + begin, first + end, p.importance == nullptr ? nullptr : own);
  };
  parallel_for(context, count, rows_per_range(kPieceTokens * p.experts),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t piece = begin; piece < end; ++piece) run_piece(piece);
               });
  if (p.importance == nullptr) return;
  if (p.dtype == DType::kFloat64) {
    sum_pieces(context, p, static_cast<const double*>(sums.data()));
  } else {
    sum_pieces(context, p, static_cast<const float*>(sums.data()));
  }
}

void moe_router_backward(const Context& context, const MoeRouterBackwardProblem& p) {
  log_cpu_kernel("moe_router", p);
  const auto run = kernels().backward[static_cast<int>(p.dtype)];
  parallel_for(context, p.tokens, rows_per_range(p.experts),
               [&](std::int64_t begin, std::int64_t end) { run(p, begin, end); });
}

}  // namespace transformer_kernels::cpu
