// SPDX-License-Identifier: MIT
#include "core/cpu/columns.h"

#include <algorithm>

#include "core/cpu/parallel.h"
#include "core/dispatch.h"
#include "core/rounding.h"

namespace transformer_kernels::cpu {
namespace {

const ColumnKernels& kernels() {
  constexpr const ColumnKernels* kTables[] = TFK_PER_ISA(column_kernels);
  return *kTables[static_cast<int>(isa())];
}

std::int64_t lane_size(DType dtype) { return size_of(accumulate_dtype(dtype)); }

}  // namespace

WideParameter::WideParameter(const Context& context, DType dtype, const Parameter& parameter)
    : in_place_(parameter.offset == 0 && size_of(dtype) == lane_size(dtype) ? parameter.data
                                                                            : nullptr),
      copy_(context, in_place_ != nullptr ? 0 : wide_cols(parameter.cols) * lane_size(dtype)) {
  if (in_place_ == nullptr) kernels().widen[static_cast<int>(dtype)](parameter, copy_.data());
}

// Large enough that adding up the chunks costs little; small enough that many threads share the
// rows and that the rounding error of a chunk's sums stays small; few enough to bound their memory.
std::int64_t rows_per_chunk(std::int64_t rows, std::int64_t cols, DType dtype) {
  constexpr std::int64_t kMaxChunks = 64;
  constexpr std::int64_t kMaxPartialBytes = 16 << 20;
  constexpr std::int64_t kUsualRows = 128;
  const std::int64_t chunk_bytes = std::max<std::int64_t>(1, 2 * cols * lane_size(dtype));
  const std::int64_t chunks =
      std::clamp<std::int64_t>(kMaxPartialBytes / chunk_bytes, 4, kMaxChunks);
  return std::max(
      {divide_up(rows, chunks), std::min(kUsualRows, rows_per_range(cols)), std::int64_t{1}});
}

void add_chunks(const Context& context, const ColumnSums& sums) {
  constexpr std::int64_t kBlock = wide_cols(1);  // whole vectors, and a cache line of totals
  const std::int64_t bytes = wide_cols(sums.cols) * lane_size(sums.dtype);
  for (int i = 0; i < 2; ++i) {
    if (sums.totals[i] == nullptr) continue;
    const ColumnSum sum{static_cast<const char*>(sums.partials) + i * bytes,
                        sums.chunks,
                        2 * wide_cols(sums.cols),
                        sums.totals[i],
                        sums.is_wide,
                        sums.accumulates};
    parallel_for(context, divide_up(sums.cols, kBlock), rows_per_range(sums.chunks * kBlock),
                 [&](std::int64_t begin, std::int64_t end) {
                   kernels().add_chunks[static_cast<int>(sums.dtype)](
                       sum, begin * kBlock, std::min(end * kBlock, sums.cols));
                 });
  }
}

}  // namespace transformer_kernels::cpu
