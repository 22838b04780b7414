// SPDX-License-Identifier: MIT
#include "loss/token_log_probs_cpu.h"

#include "core/cpu/parallel.h"

namespace transformer_kernels::cpu {
namespace {

const TokenLogProbsKernels& kernels() {
  constexpr const TokenLogProbsKernels* kTables[] = TFK_PER_ISA(token_log_probs_kernels);
  return *kTables[static_cast<int>(isa())];
}

template <class Kernels, class Problem>
void run(const Context& context, const Problem& p, const Kernels& of_dtype) {
  log_cpu_kernel("token_log_probs", p);
  parallel_for(context, p.rows, rows_per_range(p.cols), [&](std::int64_t begin, std::int64_t end) {
    of_dtype[static_cast<int>(p.dtype)](p, begin, end);
  });
}

}  // namespace

void token_log_probs_forward(const Context& context, const TokenLogProbsForwardProblem& p) {
  run(context, p, kernels().forward);
}

void token_log_probs_backward(const Context& context, const TokenLogProbsBackwardProblem& p) {
  run(context, p, kernels().backward);
}

}  // namespace transformer_kernels::cpu
