// SPDX-License-Identifier: MIT
// The choice between kernels for packs of 16 bytes and for single elements, and the sort.
#include <optional>

#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "core/log.h"
#include "embedding/kernels.h"
#include "pointwise/plan.h"

namespace transformer_kernels::cuda {
namespace {

// Packs are whole: the last of a row as well.
bool has_packs(const EmbeddingForwardProblem& p) {
  bool fit = p.cols * size_of(p.dtype) % 16 == 0 && packs_fit(p.dtype, p.tokens, {p.y}, {});
  for (int i = 0; i < p.tables; ++i) {
    fit = fit && packs_fit(p.dtype, p.table[i].rows, {p.table[i].weight}, {});
  }
  return fit;
}
bool has_packs(const EmbeddingBackwardProblem& p) {
  return p.cols * size_of(p.dtype) % 16 == 0 && packs_fit(p.dtype, p.tokens, {p.dy}, {}) &&
         packs_fit(p.dtype, p.rows, {p.dweight}, {});
}

template <class Problem>
bool chosen_packs(const Problem& p) {
  const bool packs = p.dtype != DType::kFloat64 && has_packs(p);
  if (log_dispatch()) {
    log_line(concat(p.op, " ", describe(p), ": ",
                    packs ? "packs run" : "packs refused: not 16-byte aligned, elements run"));
  }
  return packs;
}

// Indices that are no array are in a known order.
SortedTokens in_known_order(const EmbeddingBackwardProblem& p) {
  const std::int64_t period = p.tokens == 0 ? 0 : p.indices.period;
  return {.indices = nullptr,
          .tokens = nullptr,
          .count = static_cast<std::uint32_t>(p.tokens),
          .repeats = static_cast<std::uint32_t>(period == 0 ? 1 : p.tokens / period),
          .period = static_cast<std::uint32_t>(period),
          .first = p.indices.first,
          .rows_are_zeros = false};
}

}  // namespace

void embedding_forward(const Context& context, const EmbeddingForwardProblem& p) {
  const bool packs = chosen_packs(p);
  dispatch_float(p.dtype, [&]<class T>() { run_embedding<T>(context, p, packs); });
}

void embedding_backward(const Context& context, const EmbeddingBackwardProblem& p) {
  const bool packs = chosen_packs(p);
  std::optional<Scratch> memory;
  SortedTokens sorted = in_known_order(p);
  if (p.indices.data != nullptr && p.tokens > 0) {
    const TokenSort sort(p);
    memory.emplace(p.op, context, sort.bytes());
    sorted = sort.run(context, memory->as<char>());
  }
  dispatch_float(p.dtype, [&]<class T>() { run_embedding<T>(context, p, sorted, packs); });
}

}  // namespace transformer_kernels::cuda
