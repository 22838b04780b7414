// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/cpu/columns.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/cpu/stores.h"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "pointwise/kernels_isa.h"

namespace transformer_kernels::cpu {
namespace {

const PointwiseKernels& kernels() {
  constexpr const PointwiseKernels* kTables[] = TFK_PER_ISA(pointwise_kernels);
  return *kTables[static_cast<int>(isa())];
}

template <class Problem>
const PointwiseOpKernels& kernels_of(const Problem& p) {
  return kernels().op[static_cast<int>(p.op)];
}

// Both biases as the kernels read them; null where the problem has none.
class WideBiases {
 public:
  template <class Problem>
  WideBiases(const Context& context, const Problem& p)
      : present_(p.has_bias()),
        bias_(context, p.dtype, of(p, p.bias, present_)),
        up_bias_(context, p.dtype, of(p, p.up_bias, present_ && p.up.data != nullptr)) {}

  const void* bias() const { return present_ ? bias_.data() : nullptr; }
  const void* up_bias() const { return present_ ? up_bias_.data() : nullptr; }

 private:
  template <class Problem>
  static Parameter of(const Problem& p, const void* data, bool present) {
    return {.data = data, .cols = present ? p.cols : 0, .is_wide = p.bias_dtype != p.dtype};
  }

  bool present_;
  WideParameter bias_;
  WideParameter up_bias_;
};

void backward_with_sums(const Context& context, const PointwiseBackwardProblem& p,
                        const WideBiases& biases) {
  const std::int64_t wide = wide_cols(p.cols);
  const std::int64_t chunk_rows = rows_per_chunk(p.rows, p.cols, p.dtype);
  const std::int64_t chunks = divide_up(p.rows, chunk_rows);
  const Scratch partials(context, chunks * 2 * wide * size_of(accumulate_dtype(p.dtype)));
  const PointwiseBackwardTask task{
      p,    biases.bias(), biases.up_bias(), streams(name_of(p.op), p), partials.data(),
      wide, chunk_rows};
  const auto run = kernels_of(p).backward_chunks[static_cast<int>(p.dtype)];
  parallel_for(context, chunks, rows_per_range(chunk_rows * p.cols),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
  add_chunks(context, {.dtype = p.dtype,
                       .cols = p.cols,
                       .chunks = chunks,
                       .partials = partials.data(),
                       .totals = {p.dbias, p.dup_bias},
                       .is_wide = p.bias_dtype != p.dtype,
                       .accumulates = p.accumulates_dbias});
}

}  // namespace

void pointwise_forward(const Context& context, const PointwiseForwardProblem& p) {
  log_cpu_kernel(name_of(p.op), p);
  const WideBiases biases(context, p);
  const PointwiseForwardTask task{p, biases.bias(), biases.up_bias(), streams(name_of(p.op), p)};
  const auto run = kernels_of(p).forward[static_cast<int>(p.dtype)];
  parallel_for(context, p.rows * tiles_of_row(p.cols), rows_per_range(std::min(p.cols, kTileCols)),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
}

void pointwise_backward(const Context& context, const PointwiseBackwardProblem& p) {
  log_cpu_kernel(name_of(p.op), p);
  const WideBiases biases(context, p);
  if (p.dbias != nullptr || p.dup_bias != nullptr) return backward_with_sums(context, p, biases);
  const PointwiseBackwardTask task{
      p, biases.bias(), biases.up_bias(), streams(name_of(p.op), p), nullptr, 0, 0};
  const auto run = kernels_of(p).backward[static_cast<int>(p.dtype)];
  parallel_for(context, p.rows * tiles_of_row(p.cols), rows_per_range(std::min(p.cols, kTileCols)),
               [&](std::int64_t begin, std::int64_t end) { run(task, begin, end); });
}

}  // namespace transformer_kernels::cpu
