// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>

#include "core/cpu/columns.h"
#include "core/cpu/parallel.h"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "rope/qk_norm_isa.h"

namespace transformer_kernels::cpu {
namespace {

const QkNormKernels& kernels() {
  constexpr const QkNormKernels* kTables[] = TFK_PER_ISA(qk_norm_kernels);
  return *kTables[static_cast<int>(isa())];
}

template <class Problem>
WideParameter wide_weight(const Context& context, const Problem& p, const void* weight) {
  return WideParameter(
      context, p.rope.dtype,
      {.data = weight, .cols = p.rope.dim, .is_wide = p.weight_dtype != p.rope.dtype, .fill = 1.0});
}

}  // namespace

void qk_norm_forward(const Context& context, const QkNormForwardProblem& p) {
  log_cpu_kernel("qk_norm", p);
  const RopeProblem& rope = p.rope;
  const WideParameter q_weight = wide_weight(context, p, p.q_weight);
  const WideParameter k_weight = wide_weight(context, p, p.k_weight);
  const QkNormForwardTask task{p, q_weight.data(), k_weight.data()};
  const auto run = kernels().forward[static_cast<int>(rope.dtype)];
  parallel_for(context, divide_up(rope.tokens(), kTokensPerBlock),
               rows_per_range(kTokensPerBlock * rope.heads() * rope.dim),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t block = begin; block < end; ++block) {
                   RopeToken tokens[kTokensPerBlock];
                   run(task, tokens,
                       tokens_from(rope, block * kTokensPerBlock, rope.tokens(), tokens));
                 }
               });
}

// Each chunk of tokens sums its part of the weights' gradients.
void qk_norm_backward(const Context& context, const QkNormBackwardProblem& p) {
  log_cpu_kernel("qk_norm", p);
  const RopeProblem& rope = p.rope;
  const WideParameter q_weight = wide_weight(context, p, p.q_weight);
  const WideParameter k_weight = wide_weight(context, p, p.k_weight);
  const std::int64_t wide = wide_cols(rope.dim);
  const QkNormBackwardTask task{p, q_weight.data(), k_weight.data(), wide};
  const std::int64_t elements = std::max<std::int64_t>(1, rope.heads() * rope.dim);
  const std::int64_t chunk_tokens = rows_per_chunk(rope.tokens(), elements, rope.dtype);
  const std::int64_t chunks = divide_up(rope.tokens(), chunk_tokens);
  const std::int64_t chunk_bytes = 2 * wide * size_of(accumulate_dtype(rope.dtype));
  const Scratch partials(context, chunks * chunk_bytes);
  const auto run = kernels().backward[static_cast<int>(rope.dtype)];
  const auto run_chunk = [&](std::int64_t chunk) {
    void* const sums = static_cast<char*>(partials.data()) + chunk * chunk_bytes;
    std::memset(sums, 0, chunk_bytes);
    const std::int64_t last = std::min((chunk + 1) * chunk_tokens, rope.tokens());
    for (std::int64_t first = chunk * chunk_tokens; first < last; first += kTokensPerBlock) {
      RopeToken tokens[kTokensPerBlock];
      run(task, tokens, tokens_from(rope, first, last, tokens), sums);
    }
  };
  parallel_for(context, chunks, rows_per_range(chunk_tokens * elements),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t chunk = begin; chunk < end; ++chunk) run_chunk(chunk);
               });
  if (!p.has_sums()) return;
  add_chunks(context, {.dtype = rope.dtype,
                       .cols = rope.dim,
                       .chunks = chunks,
                       .partials = partials.data(),
                       .totals = {p.dq_weight, p.dk_weight},
                       .is_wide = p.weight_dtype != rope.dtype});
}

}  // namespace transformer_kernels::cpu
