// SPDX-License-Identifier: MIT
#ifdef TFK_WITH_CUDA

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "backend.h"

namespace transformer_kernels::testing {
namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// Device 0, on a stream of its own.
class CudaBackend final : public Backend {
 public:
  CudaBackend() { check(cudaStreamCreate(&stream_)); }

  const char* name() const override { return "cuda"; }
  Context context() const override { return {.device = {DeviceType::kCuda, 0}, .stream = stream_}; }
  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes + 1));
    return memory;
  }
  void release(void* memory) override { check(cudaFree(memory)); }
  void upload(void* device, const void* host, std::size_t bytes) override {
    copy(device, host, bytes);
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    copy(host, device, bytes);
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
    check(cudaStreamSynchronize(stream_));
  }

  cudaStream_t stream_ = nullptr;
};

}  // namespace

Backend* cuda_backend() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return nullptr;
  static CudaBackend backend;
  return &backend;
}

}  // namespace transformer_kernels::testing

#endif
