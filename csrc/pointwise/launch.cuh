// SPDX-License-Identifier: MIT
// The launch of a PointwiseGrid.
#pragma once

#include "core/cuda/launch.cuh"
#include "pointwise/plan.h"

namespace transformer_kernels::cuda {

inline bool may_overlap_launches(const Context& context) {
  return device_limits(context.device.index).architecture >= 90;
}

inline LaunchShape shape_of(const Context& context, const PointwiseGrid& grid) {
  return {.ctas = grid.column_blocks,
          .threads = grid.threads,
          .threads_y = grid.threads_y,
          .ctas_y = grid.ctas_y(),
          .ctas_z = grid.ctas_z(),
          .after_previous = may_overlap_launches(context)};
}

}  // namespace transformer_kernels::cuda
