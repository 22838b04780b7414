// SPDX-License-Identifier: MIT
#include "core/cuda/device.h"

#include <map>

#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"

namespace transformer_kernels::cuda {
namespace {

DeviceLimits read_limits(int device) {
  const auto get = [device](cudaDeviceAttr attribute) {
    int value = 0;
    check_cuda("device", cudaDeviceGetAttribute(&value, attribute, device));
    return value;
  };
  return {.architecture =
              10 * get(cudaDevAttrComputeCapabilityMajor) + get(cudaDevAttrComputeCapabilityMinor),
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
  check_cuda(op, cudaSetDevice(device));
}

CurrentDevice::~CurrentDevice() {
  if (previous_ != device_) cudaSetDevice(previous_);
}

Scratch::Scratch(const char* op, const Context& context, std::size_t bytes) : context_(context) {
  if (context_.workspace.allocate != nullptr) {
    memory_ = context_.workspace.allocate(context_.workspace.user, bytes);
    return;
  }
  check_cuda(op, cudaMallocAsync(&memory_, bytes, static_cast<cudaStream_t>(context_.stream)));
}

Scratch::~Scratch() {
  if (context_.workspace.allocate == nullptr) {
    cudaFreeAsync(memory_, static_cast<cudaStream_t>(context_.stream));
  } else if (context_.workspace.release != nullptr) {
    context_.workspace.release(context_.workspace.user, memory_);
  }
}

}  // namespace transformer_kernels::cuda
