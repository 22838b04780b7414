// SPDX-License-Identifier: MIT
#pragma once

#include "core/cuda/launch.cuh"
#include "decode/sampling/group.cuh"

namespace transformer_kernels::cuda::sampling {

// Launches a group of CTAs for each row, with memory for `numbers` floats behind that of the group.
template <class Call>
void launch_groups(const char* op, const Context& context, void (*kernel)(Call), const Call& call,
                   std::int64_t rows, std::size_t numbers) {
  const int device = context.device.index;
  LaunchShape shape{.threads = kThreads,
                    .cluster = most_ctas(device_limits(device)),
                    .shared_bytes = sizeof(GroupMemory) + numbers * sizeof(float)};
  // A kernel says what it may use once, and another call may want larger clusters.
  allow_attributes(op, kernel, shape, device);
  shape.ctas = rows * call.plan.ctas;
  shape.cluster = call.plan.ctas;
  launch(op, context, shape, kernel, call);
}

}  // namespace transformer_kernels::cuda::sampling
