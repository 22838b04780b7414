// SPDX-License-Identifier: MIT
// Launching: attributes are set once a kernel and device, and every launch is checked.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/cuda/device.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels::cuda {

inline void check_cuda(const char* op, cudaError_t status) {
  if (status == cudaSuccess) return;
  throw Error(Error::Kind::kRuntime, concat(op, ": CUDA reports ", cudaGetErrorName(status), ", ",
                                            cudaGetErrorString(status)));
}

struct LaunchShape {
  std::int64_t ctas = 1;
  int threads = 1;
  int threads_y = 1;
  int ctas_y = 1;  // at most 65535, and so the next
  int ctas_z = 1;
  int cluster = 1;               // CTAs a cluster
  std::size_t shared_bytes = 0;  // dynamic
  bool after_previous = false;   // may start while the kernel before it ends (griddepcontrol)
};

// A kernel may use more than 48 KB of shared memory, its static memory included, or clusters of
// more than 8 CTAs, only after it says so once on each device.
template <class Function>
void allow_attributes(const char* op, Function* kernel, const LaunchShape& shape, int device) {
  constexpr std::size_t kMostStaticBytes = 16 * 1024;
  constexpr std::size_t kDefaultLimit = 48 * 1024 - kMostStaticBytes;
  if (shape.shared_bytes <= kDefaultLimit && shape.cluster <= 8) return;
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> done;
  const std::lock_guard lock(mutex);
  const auto key = std::make_pair(reinterpret_cast<const void*>(kernel), device);
  if (done.contains(key)) return;
  cudaFuncAttributes own{};
  check_cuda(op, cudaFuncGetAttributes(&own, kernel));
  const int dynamic_bytes =
      device_limits(device).shared_bytes_per_cta - static_cast<int>(own.sharedSizeBytes);
  check_cuda(
      op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_bytes));
  if (shape.cluster > 8) {
    check_cuda(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  done.insert(key);
}

template <class... Parameters>
void launch(const char* op, const Context& context, const LaunchShape& shape,
            void (*kernel)(Parameters...), Parameters... parameters) {
  constexpr std::int64_t kMaxCtas = 2147483647;
  check_value(shape.ctas <= kMaxCtas, op, ": x has too many rows for one launch");
  allow_attributes(op, kernel, shape, context.device.index);
  cudaLaunchAttribute attributes[2];
  int count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.after_previous) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.ctas), shape.ctas_y, shape.ctas_z);
  config.blockDim = dim3(shape.threads, shape.threads_y);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(context.stream);
  config.attrs = attributes;
  config.numAttrs = static_cast<unsigned>(count);
  check_cuda(op, cudaLaunchKernelEx(&config, kernel, parameters...));
}

}  // namespace transformer_kernels::cuda
