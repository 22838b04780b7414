// SPDX-License-Identifier: MIT
// Launches of kernels over chunks of rows.
#pragma once

#include <iterator>

#include "core/cuda/chunk_plan.h"
#include "core/cuda/launch.cuh"
#include "core/dispatch.h"

namespace transformer_kernels::cuda {

// A row of a plan table as a type, which kernels take as a template argument.
template <const auto& kTable, std::size_t kIndex>
struct ChunkRow {
  static constexpr auto row = kTable[kIndex];
  static constexpr ChunkPlan plan = plan_of(row);
};

// Calls body.operator()<Row>(chunk shape, launch shape) for row `plan` of a table. Where a row's
// registers do not hold storage type T, it is not compiled.
template <const auto& kTable, class T, class Body>
void dispatch_chunk(const Context& context, const ChunkLoad& load, std::size_t plan, Body&& body) {
  const DeviceLimits& device = device_limits(context.device.index);
  dispatch_index<std::size(kTable)>(plan, [&]<std::size_t kIndex>() {
    using Row = ChunkRow<kTable, kIndex>;
    if constexpr (registers_hold(Row::plan, sizeof(T))) {
      const ChunkShape shape = chunk_shape(Row::plan, load);
      const LaunchShape launch_shape{.ctas = chunk_grid(Row::plan, shape, load, device),
                                     .threads = Row::plan.cta_threads(),
                                     .shared_bytes = static_cast<std::size_t>(shape.shared_bytes)};
      body.template operator()<Row>(shape, launch_shape);
    }
  });
}

}  // namespace transformer_kernels::cuda
