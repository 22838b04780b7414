// SPDX-License-Identifier: MIT
#include "device.h"

#include <cstdlib>
#include <cstring>
#include <new>

#ifdef GPT2_CUDA
#include "cuda_device.h"
#endif

namespace gpt2 {
namespace {

constexpr std::size_t kAlignment = 64;

class Cpu final : public Device {
 public:
  void* allocate(std::size_t bytes) override {
    const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
    void* const memory = std::aligned_alloc(kAlignment, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    return std::memset(memory, 0, rounded);
  }
  void release(void* memory) noexcept override { std::free(memory); }
  void write(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void read(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  std::function<void()> repeated(std::function<void()> work) override { return work; }
};

Device& cuda() {
#ifdef GPT2_CUDA
  return cuda_device();
#else
  throw NoDevice("--device=cuda needs a library with CUDA kernels, which this program has not");
#endif
}

}  // namespace

Device& Device::of(tfk::DeviceType type) {
  static Cpu cpu;
  return type == tfk::DeviceType::kCpu ? cpu : cuda();
}

}  // namespace gpt2
