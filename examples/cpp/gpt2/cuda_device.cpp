// SPDX-License-Identifier: MIT
// The CUDA runtime alone: all kernels are the library's.
#include "cuda_device.h"

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

namespace gpt2 {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

void check_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return;
  throw NoDevice(std::string("--device=cuda: there is no CUDA device: ") +
                 cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error));
}

// Memory that was released serves the next call that it fits: all work is in one order, so that
// nothing reads it any more when that call's work begins. None is given back to the driver.
class Pool {
 public:
  void* take(std::size_t bytes) {
    const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
    const auto fits = free_.lower_bound(rounded);
    if (fits != free_.end() && fits->first <= 2 * rounded) {
      void* const memory = fits->second;
      free_.erase(fits);
      return memory;
    }
    void* memory = nullptr;
    if (cudaMalloc(&memory, rounded) != cudaSuccess) {
      cudaGetLastError();  // else it would be the error of the next call that asks
      throw std::runtime_error("the CUDA device has no more memory: " + std::to_string(rounded) +
                               " bytes were wanted");
    }
    sizes_[memory] = rounded;
    return memory;
  }
  void give(void* memory) { free_.emplace(sizes_.at(memory), memory); }

  tfk::Workspace workspace() {
    return {.allocate = [](void* pool, std::size_t bytes) { return of(pool).take(bytes); },
            .release = [](void* pool, void* memory) { of(pool).give(memory); },
            .user = this};
  }

 private:
  static Pool& of(void* pool) { return *static_cast<Pool*>(pool); }

  static constexpr std::size_t kAlignment = 512;
  std::multimap<std::size_t, void*> free_;
  std::unordered_map<void*, std::size_t> sizes_;  // of all
};

// The first call does the work, so that whatever is made at first use is there; the second one
// records it, and all from then on play the record.
class Graph {
 public:
  Graph(cudaStream_t stream, std::function<void()> work)
      : stream_(stream),
        work_(std::move(work)) {}
  ~Graph() {
    if (record_ != nullptr) cudaGraphExecDestroy(record_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void run() {
    if (!std::exchange(has_run_, true)) return work_();
    if (record_ == nullptr) record();
    check(cudaGraphLaunch(record_, stream_), "a graph does not start");
  }

 private:
  void record() {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "a graph is not recorded");
    try {
      work_();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream_, &graph), "a graph is not recorded");
    const cudaError_t error = cudaGraphInstantiate(&record_, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "a graph is not made");
  }

  cudaStream_t stream_;
  std::function<void()> work_;
  bool has_run_ = false;
  cudaGraphExec_t record_ = nullptr;
};

class Cuda final : public Device {
 public:
  Cuda() {
    check_device();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "the CUDA device fails");
    context_.device = {tfk::DeviceType::kCuda, 0};
    context_.stream = stream_;
    context_.workspace = scratch_.workspace();
  }

  void* allocate(std::size_t bytes) override {
    void* const memory = tensors_.take(bytes);
    check(cudaMemsetAsync(memory, 0, bytes, stream_), "memory is not cleared");
    return memory;
  }
  void release(void* memory) noexcept override { tensors_.give(memory); }

  // The runtime returns when it has a copy of its own of the host's numbers.
  void write(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "a copy fails");
  }
  void read(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "a copy fails");
    check(cudaStreamSynchronize(stream_), "the CUDA device fails");
  }

  std::function<void()> repeated(std::function<void()> work) override {
    return [graph = std::make_shared<Graph>(stream_, std::move(work))] { graph->run(); };
  }

 private:
  cudaStream_t stream_ = nullptr;
  // A graph writes to its scratch memory whenever it is played: no tensor may have it.
  Pool tensors_, scratch_;
};

}  // namespace

Device& cuda_device() {
  // It is never destroyed: the driver takes all back when the program ends.
  static Device* const device = new Cuda;
  return *device;
}

}  // namespace gpt2
