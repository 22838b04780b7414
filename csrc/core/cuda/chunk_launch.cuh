// SPDX-License-Identifier: MIT
// Launching kernels over chunks of rows.
#pragma once

#include "core/cuda/chunk_plan.h"
#include "core/cuda/launch.cuh"
#include "core/dispatch.h"
#include "core/select.h"

namespace transformer_kernels::cuda {

// A row of a plan table as a type: what a kernel takes as its template argument.
template <const auto& kTable, std::size_t kIndex>
struct ChunkRow {
  static constexpr auto row = kTable[kIndex];
  static constexpr ChunkPlan plan = plan_of(row);
};

// Runs a problem by the first row of a table that takes it; false where none does. `load` is the
// problem's. run.operator()<T, Row>(chunk shape, launch shape) launches a kernel over storage type
// T; where a row's registers do not hold T, it is not compiled.
template <const auto& kTable, class Problem, class Run>
bool run_in_chunks(const char* op, const Context& context, const Problem& problem,
                   const ChunkLoad& load, Run&& run) {
  const DeviceLimits& device = device_limits(context.device.index);
  const auto chosen = find_kernel(
      op, kTable, problem, [&](const auto& row) { return chunk_refusal(row, problem, device); });
  if (!chosen) return false;
  dispatch_index<std::size(kTable)>(*chosen, [&]<std::size_t kIndex>() {
    using Row = ChunkRow<kTable, kIndex>;
    const ChunkShape shape = chunk_shape(Row::plan, load);
    const LaunchShape launch_shape{.ctas = chunk_grid(Row::plan, shape, load, device),
                                   .threads = Row::plan.cta_threads(),
                                   .shared_bytes = static_cast<std::size_t>(shape.shared_bytes)};
    dispatch_float(problem.dtype, [&]<class T>() {
      if constexpr (!std::is_same_v<T, double> && registers_hold(Row::plan, sizeof(T))) {
        run.template operator()<T, Row>(shape, launch_shape);
      }
    });
  });
  return true;
}

}  // namespace transformer_kernels::cuda
