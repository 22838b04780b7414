// SPDX-License-Identifier: MIT
// What launch policies ask of a device. No CUDA header, so that policies are tested without a GPU.
#pragma once

#include <cstddef>

namespace transformer_kernels::cuda {

struct DeviceLimits {
  int architecture = 0;          // 90 for compute capability 9.0
  int processors = 0;            // streaming multiprocessors
  int shared_bytes_per_cta = 0;  // the most one CTA may ask for
};

// Read once for each device.
const DeviceLimits& device_limits(int device);

}  // namespace transformer_kernels::cuda
