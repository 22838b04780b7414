// SPDX-License-Identifier: MIT
#include "linear/cpu/few_rows.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"

namespace transformer_kernels::cpu {

const FewRowsKernels& few_rows_kernels_of(DType dtype) {
  constexpr const FewRowsTable* kTables[] = TFK_PER_ISA(few_rows_kernels);
  return kTables[static_cast<int>(isa())]->of[static_cast<int>(dtype)];
}

void multiply_few_rows(const Context& context, const Product& p,
                       const PointwiseKernels& activations) {
  if (log_dispatch()) log_line("linear: few rows: the weight is read once, where it lies");
  const FewRowsKernels& kernels = few_rows_kernels_of(p.dtype);
  const AlignedScratch left(
      context, padded_rows(p.rows) * padded_terms(p.terms) * size_of(accumulate_dtype(p.dtype)));
  const FewRowsTask task{p, left.data(), &activations};
  kernels.arrange(task);
  parallel_for(context, divide_up(p.cols, kFewCols), rows_per_range(p.terms * kFewCols),
               [&](std::int64_t begin, std::int64_t end) { kernels.multiply(task, begin, end); });
}

}  // namespace transformer_kernels::cpu
