// SPDX-License-Identifier: MIT
#include "backend.h"

#include <cstring>
#include <new>

namespace transformer_kernels::testing {
namespace {

class CpuBackend final : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  Context context() const override { return {}; }
  void* allocate(std::size_t bytes) override { return ::operator new(bytes, kAlignment); }
  void release(void* memory) override { ::operator delete(memory, kAlignment); }
  void upload(void* device, const void* host, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(device, host, bytes);
  }
  void download(void* host, const void* device, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(host, device, bytes);
  }

 private:
  static constexpr std::align_val_t kAlignment{256};
};

}  // namespace

Backend* cpu_backend() {
  static CpuBackend backend;
  return &backend;
}

std::vector<Backend*> backends() {
  std::vector<Backend*> all{cpu_backend()};
#ifdef TFK_WITH_CUDA
  if (Backend* cuda = cuda_backend()) all.push_back(cuda);
#endif
  return all;
}

}  // namespace transformer_kernels::testing
