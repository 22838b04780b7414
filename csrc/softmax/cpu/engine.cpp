// SPDX-License-Identifier: MIT
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/cpu/stores.h"
#include "core/dispatch.h"
#include "softmax/cpu/kernels.h"

namespace transformer_kernels::cpu {
namespace {

const SoftmaxKernels& kernels() {
  constexpr const SoftmaxKernels* kTables[] = TFK_PER_ISA(softmax_kernels);
  return *kTables[static_cast<int>(isa())];
}

}  // namespace

void softmax_forward(const Context& context, const SoftmaxForwardProblem& p) {
  log_cpu_kernel("softmax", p);
  const auto run = kernels().forward[static_cast<int>(p.dtype)];
  const bool stream = streams("softmax", p);
  const std::int64_t row_bytes = wide_cols(p.cols) * size_of(accumulate_dtype(p.dtype));
  parallel_for(context, p.rows, rows_per_range(p.cols), [&](std::int64_t begin, std::int64_t end) {
    RowScratch scratch(row_bytes);
    run(p, stream, scratch.data(), begin, end);
  });
}

void softmax_backward(const Context& context, const SoftmaxBackwardProblem& p) {
  log_cpu_kernel("softmax", p);
  const auto run = kernels().backward[static_cast<int>(p.dtype)];
  const bool stream = streams("softmax", p);
  parallel_for(context, p.rows, rows_per_range(p.cols),
               [&](std::int64_t begin, std::int64_t end) { run(p, stream, begin, end); });
}

}  // namespace transformer_kernels::cpu
