// SPDX-License-Identifier: MIT
#include "norm/row_norm_cpu.h"

#include <algorithm>

#include "core/cpu/cache.h"
#include "core/cpu/columns.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/dispatch.h"
#include "core/rounding.h"

namespace transformer_kernels::cpu {
namespace {

const NormKernels& kernels() {
  constexpr const NormKernels* kTables[] = TFK_PER_ISA(norm_kernels);
  return *kTables[static_cast<int>(isa())];
}

constexpr int index_of(DType dtype) { return static_cast<int>(dtype); }

template <class Problem>
Parameter weight_of(const Problem& p) {
  const bool shifted = p.weight != nullptr && p.zero_centered_weight;
  return {.data = p.weight,
          .cols = p.cols,
          .is_wide = p.weight_dtype != p.dtype,
          .fill = 1.0,
          .offset = shifted ? 1.0 : -0.0};
}

Parameter bias_of(const NormForwardProblem& p) {
  return {
      .data = p.bias, .cols = p.bias != nullptr ? p.cols : 0, .is_wide = p.weight_dtype != p.dtype};
}

// Rows of no columns may have any stride and no memory; kernels still compute their addresses.
template <class Problem, class... Members>
Problem without_empty_strides(Problem problem, Members... members) {
  if (problem.cols == 0) ((problem.*members = Rows{}), ...);
  return problem;
}

}  // namespace

void norm_forward(const Context& context, const NormForwardProblem& problem) {
  using P = NormForwardProblem;
  const P p = without_empty_strides(problem, &P::x, &P::residual, &P::y, &P::sum);
  log_cpu_kernel(p.op, p);
  const WideParameter weight(context, p.dtype, weight_of(p));
  const WideParameter bias(context, p.dtype, bias_of(p));
  const bool stream = exceeds_cache(p.rows * p.cols * size_of(p.dtype));
  const NormForwardTask task{p, weight.data(), p.bias != nullptr ? bias.data() : nullptr, stream};
  parallel_for(context, p.rows, rows_per_range(p.cols), [&](std::int64_t begin, std::int64_t end) {
    RowScratch scratch(stream && p.sum.data ? p.cols * size_of(p.dtype) : 0);
    kernels().forward[index_of(p.dtype)](task, scratch.data(), begin, end);
  });
}

void norm_backward(const Context& context, const NormBackwardProblem& problem) {
  using P = NormBackwardProblem;
  const P p = without_empty_strides(problem, &P::dy, &P::dsum, &P::x, &P::dx);
  log_cpu_kernel(p.op, p);
  constexpr std::int64_t kGroup = 4;  // rows that the kernel takes at once
  const std::int64_t chunk_rows = rounded_up(rows_per_chunk(p.rows, p.cols, p.dtype), kGroup);
  const std::int64_t chunks = divide_up(p.rows, chunk_rows);
  const bool wanted = p.dweight != nullptr || p.dbias != nullptr;
  const std::int64_t wide = wide_cols(p.cols);
  const Scratch partials(context,
                         wanted ? chunks * 2 * wide * size_of(accumulate_dtype(p.dtype)) : 0);
  const WideParameter weight(context, p.dtype, weight_of(p));
  const NormBackwardTask task{
      p,    weight.data(), partials.data(),
      wide, chunk_rows,    exceeds_cache(p.rows * p.cols * size_of(p.dtype))};
  const std::int64_t grain = rows_per_range(chunk_rows * p.cols);
  parallel_for(context, chunks, grain, [&](std::int64_t begin, std::int64_t end) {
    kernels().backward[index_of(p.dtype)](task, begin, end);
  });
  if (!wanted) return;
  add_chunks(context, {.dtype = p.dtype,
                       .cols = p.cols,
                       .chunks = chunks,
                       .partials = partials.data(),
                       .totals = {p.dweight, p.dbias},
                       .is_wide = p.weight_dtype != p.dtype});
}

}  // namespace transformer_kernels::cpu
