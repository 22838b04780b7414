// SPDX-License-Identifier: MIT
#include "core/cpu/cache.h"
#include "core/cpu/parallel.h"
#include "core/rounding.h"
#include "rope/rope_isa.h"

namespace transformer_kernels::cpu {

void rope(const Context& context, const RopeProblem& p) {
  log_cpu_kernel("rope", p);
  constexpr const RopeKernels* kTables[] = TFK_PER_ISA(rope_kernels);
  const RopeKernels& kernels = *kTables[static_cast<int>(isa())];
  const auto rotate = kernels.rotate[static_cast<int>(p.dtype)];
  const std::int64_t elements = p.heads() * p.dim;
  const RopeTask task{p, p.rotary_dim(), exceeds_cache(p.tokens() * elements * size_of(p.dtype))};
  const auto run_block = [&](std::int64_t block) {
    RopeToken tokens[kTokensPerBlock];
    int count = 0;
    std::int64_t index = block * kTokensPerBlock;
    for (; count < kTokensPerBlock && index < p.tokens(); ++count, ++index) {
      const Token at{index / p.time, index % p.time};
      tokens[count] = {at, positions_of(p.angles, at)};
    }
    rotate(task, tokens, count);
  };
  parallel_for(context, divide_up(p.tokens(), kTokensPerBlock),
               rows_per_range(kTokensPerBlock * elements),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t block = begin; block < end; ++block) run_block(block);
                 kernels.finish();
               });
}

}  // namespace transformer_kernels::cpu
