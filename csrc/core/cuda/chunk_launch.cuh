// SPDX-License-Identifier: MIT
// Launching kernels over chunks of rows.
#pragma once

#include "core/cuda/chunk_plan.h"
#include "core/cuda/launch.cuh"
#include "core/dispatch.h"

namespace transformer_kernels::cuda {

inline LaunchShape chunk_launch(const ChunkPlan& plan, const ChunkShape& shape,
                                const ChunkLoad& load, const DeviceLimits& device) {
  return {.ctas = chunk_grid(plan, shape, load, device),
          .threads = plan.cta_threads(),
          .shared_bytes = static_cast<std::size_t>(shape.shared_bytes)};
}

// Calls body.operator()<T>() with the storage type of a dtype that the plan's registers hold. The
// others are not compiled.
template <class Plan, class Body>
void dispatch_chunk_type(DType dtype, Body&& body) {
  dispatch_float(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double> && registers_hold(Plan::plan, sizeof(T))) {
      body.template operator()<T>();
    }
  });
}

}  // namespace transformer_kernels::cuda
