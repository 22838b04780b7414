// SPDX-License-Identifier: MIT
#include "core/cuda/device.h"

#include <algorithm>
#include <map>

#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "core/times.h"

namespace transformer_kernels::cuda {
namespace {

__global__ void probe_kernel() {}

// The newest architecture whose features device code may use. Code without a binary for this device
// was compiled at load time from an earlier architecture's PTX, and lacks the kernels of later
// ones.
int architecture_of(int device, int capability) {
  const CurrentDevice current("device", device);
  cudaFuncAttributes probe{};
  check_cuda("device", cudaFuncGetAttributes(&probe, &probe_kernel));
  return std::min(capability, probe.ptxVersion);
}

DeviceLimits read_limits(int device) {
  cudaDeviceProp properties{};
  check_cuda("device", cudaGetDeviceProperties(&properties, device));
  note_device(properties.name);
  const auto get = [device](cudaDeviceAttr attribute) {
    int value = 0;
    check_cuda("device", cudaDeviceGetAttribute(&value, attribute, device));
    return value;
  };
  const int capability =
      10 * get(cudaDevAttrComputeCapabilityMajor) + get(cudaDevAttrComputeCapabilityMinor);
  return {.architecture = architecture_of(device, capability),
          .processors = get(cudaDevAttrMultiProcessorCount),
          .shared_bytes_per_cta = get(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

}  // namespace

const DeviceLimits& device_limits(int device) {
  static std::mutex mutex;
  static std::map<int, DeviceLimits> limits;
  const std::lock_guard lock(mutex);
  const auto found = limits.find(device);
  return found != limits.end() ? found->second
                               : limits.emplace(device, read_limits(device)).first->second;
}

CurrentDevice::CurrentDevice(const char* op, int device) : device_(device) {
  check_cuda(op, cudaGetDevice(&previous_));
  if (previous_ != device) check_cuda(op, cudaSetDevice(device));
}

CurrentDevice::~CurrentDevice() {
  if (previous_ != device_) cudaSetDevice(previous_);
}

Scratch::Scratch(const char* op, const Context& context, std::size_t bytes) : context_(context) {
  if (bytes == 0) return;
  if (context_.workspace.allocate != nullptr) {
    memory_ = context_.workspace.allocate(context_.workspace.user, bytes);
    return;
  }
  check_cuda(op, cudaMallocAsync(&memory_, bytes, static_cast<cudaStream_t>(context_.stream)));
}

Scratch::~Scratch() {
  if (memory_ == nullptr) return;
  if (context_.workspace.allocate == nullptr) {
    cudaFreeAsync(memory_, static_cast<cudaStream_t>(context_.stream));
  } else if (context_.workspace.release != nullptr) {
    context_.workspace.release(context_.workspace.user, memory_);
  }
}

}  // namespace transformer_kernels::cuda
