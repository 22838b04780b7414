// SPDX-License-Identifier: MIT
// The properties of a device that launch policies read. No CUDA header, so policies are tested
// without a GPU.
#pragma once

#include <cstddef>

namespace transformer_kernels::cuda {

struct DeviceLimits {
  int architecture = 0;          // 90 for compute capability 9.0; of our code, where that is older
  int processors = 0;            // streaming multiprocessors
  int shared_bytes_per_cta = 0;  // the most one CTA may ask for
};

// Read once for each device.
const DeviceLimits& device_limits(int device);

// Makes a device the current one of this thread; the one before comes back at the end. Where it is
// current already nothing is done, so the thread may have no context yet: the runtime makes it with
// the first call that needs one, the driver does not.
class CurrentDevice {
 public:
  CurrentDevice(const char* op, int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int device_;
  int previous_ = 0;
};

}  // namespace transformer_kernels::cuda
