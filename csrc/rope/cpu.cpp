// SPDX-License-Identifier: MIT
#include "core/cpu/cache.h"
#include "core/cpu/parallel.h"
#include "core/rounding.h"
#include "rope/kernels_isa.h"

namespace transformer_kernels::cpu {

int tokens_from(const RopeProblem& p, std::int64_t first, std::int64_t last, RopeToken* tokens) {
  int count = 0;
  for (std::int64_t i = first; i < last && count < kTokensPerBlock; ++i, ++count) {
    const Token at{i / p.time, i % p.time};
    tokens[count] = {at, positions_of(p.angles, at)};
  }
  return count;
}

void rope(const Context& context, const RopeProblem& p) {
  log_cpu_kernel("rope", p);
  constexpr const RopeKernels* kTables[] = TFK_PER_ISA(rope_kernels);
  const RopeKernels& kernels = *kTables[static_cast<int>(isa())];
  const auto rotate = kernels.rotate[static_cast<int>(p.dtype)];
  const std::int64_t elements = p.heads() * p.dim;
  const RopeTask task{p, exceeds_cache(p.tokens() * elements * size_of(p.dtype))};
  parallel_for(context, divide_up(p.tokens(), kTokensPerBlock),
               rows_per_range(kTokensPerBlock * elements),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t block = begin; block < end; ++block) {
                   RopeToken tokens[kTokensPerBlock];
                   const int count = tokens_from(p, block * kTokensPerBlock, p.tokens(), tokens);
                   rotate(task, tokens, count);
                 }
                 kernels.finish();
               });
}

}  // namespace transformer_kernels::cpu
