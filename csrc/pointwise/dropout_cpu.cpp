// SPDX-License-Identifier: MIT
#include "pointwise/dropout_cpu.h"

#include <algorithm>

#include "core/cpu/cache.h"
#include "core/cpu/parallel.h"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "pointwise/kernels_isa.h"

namespace transformer_kernels::cpu {
namespace {

const DropoutKernels& kernels() {
  constexpr const DropoutKernels* kTables[] = TFK_PER_ISA(dropout_kernels);
  return *kTables[static_cast<int>(isa())];
}

constexpr int index_of(DType dtype) { return static_cast<int>(dtype); }

void run_tiles(const Context& context, const DropoutForwardProblem& p) {
  const DropoutForwardRows rows(context, p, leaves_cache(p));
  parallel_for(context, p.rows * tiles_of_row(p.cols), rows_per_range(std::min(p.cols, kTileCols)),
               [&](std::int64_t begin, std::int64_t end) { rows.tiles(begin, end); });
}

}  // namespace

DropoutForwardRows::DropoutForwardRows(const Context& context, const DropoutForwardProblem& p,
                                       bool stream)
    : bias_(context, p.dtype,
            {.data = p.bias,
             .cols = p.bias != nullptr ? p.cols : 0,
             .is_wide = p.bias_dtype != p.dtype}),
      task_{p, p.bias != nullptr ? bias_.data() : nullptr, stream} {}

void DropoutForwardRows::tiles(std::int64_t begin, std::int64_t end) const {
  kernels().tiles[index_of(task_.problem.dtype)](task_, begin, end);
}

void DropoutForwardRows::row(std::int64_t index) const {
  const std::int64_t of_row = tiles_of_row(task_.problem.cols);
  tiles(index * of_row, (index + 1) * of_row);
}

DropoutBackwardRows::DropoutBackwardRows(const Context& context, const DropoutBackwardProblem& p,
                                         bool stream, std::int64_t rows_per_chunk)
    : chunks_(divide_up(p.rows, rows_per_chunk)),
      partials_(context, p.dbias != nullptr
                             ? chunks_ * 2 * wide_cols(p.cols) * size_of(accumulate_dtype(p.dtype))
                             : 0),
      task_{p, stream, partials_.data(), wide_cols(p.cols), rows_per_chunk},
      dropped_(dropout_of_gradient(p)) {}

void DropoutBackwardRows::chunk(std::int64_t index) const {
  const DropoutBackwardProblem& p = task_.problem;
  if (p.cols == 0) return;
  if (p.dbias != nullptr) {
    return kernels().backward_chunks[index_of(p.dtype)](task_, index, index + 1);
  }
  const std::int64_t of_row = tiles_of_row(p.cols);
  const std::int64_t first = index * task_.rows_per_chunk;
  const std::int64_t last = std::min(first + task_.rows_per_chunk, p.rows);
  kernels().tiles[index_of(p.dtype)]({dropped_, nullptr, task_.stream}, first * of_row,
                                     last * of_row);
}

void DropoutBackwardRows::finish(const Context& context) const {
  const DropoutBackwardProblem& p = task_.problem;
  if (p.dbias == nullptr) return;
  add_chunks(context, {.dtype = p.dtype,
                       .cols = p.cols,
                       .chunks = chunks_,
                       .partials = partials_.data(),
                       .totals = {p.dbias, nullptr},
                       .is_wide = p.bias_dtype != p.dtype});
}

void dropout_forward(const Context& context, const DropoutForwardProblem& p) {
  log_cpu_kernel(p.op, p);
  run_tiles(context, p);
}

void dropout_backward(const Context& context, const DropoutBackwardProblem& p) {
  log_cpu_kernel(p.op, p);
  if (p.dbias == nullptr) return run_tiles(context, dropout_of_gradient(p));
  const std::int64_t chunk_rows = rows_per_chunk(p.rows, p.cols, p.dtype);
  const DropoutBackwardRows rows(context, p, leaves_cache(p), chunk_rows);
  parallel_for(context, divide_up(p.rows, chunk_rows), rows_per_range(chunk_rows * p.cols),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t chunk = begin; chunk < end; ++chunk) rows.chunk(chunk);
               });
  rows.finish(context);
}

}  // namespace transformer_kernels::cpu
