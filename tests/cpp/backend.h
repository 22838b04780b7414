// SPDX-License-Identifier: MIT
// The backends that the tests of the ops run on: each test runs once for each backend of this
// machine.
#pragma once

#include <cstddef>
#include <vector>

#include "transformer_kernels/context.h"

namespace transformer_kernels::testing {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  virtual Context context() const = 0;

  // Memory of the device, aligned to at least 256 bytes.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  // Copies wait for what was enqueued on the context's stream before.
  virtual void upload(void* device, const void* host, std::size_t bytes) = 0;
  virtual void download(void* host, const void* device, std::size_t bytes) = 0;
};

// For tests of what there is on CUDA alone: the limits of its plans, its engines.
inline bool is_on_cuda(const Backend& backend) {
  return backend.context().device.type == DeviceType::kCuda;
}

Backend* cpu_backend();
// In builds with CUDA only; null where this machine has no CUDA device.
Backend* cuda_backend();

// The backends of this machine, the CPU first.
std::vector<Backend*> backends();

}  // namespace transformer_kernels::testing
