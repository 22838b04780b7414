// SPDX-License-Identifier: MIT
// Memory of a CUDA device between addresses that have none: an access before its first byte or
// behind its last one is an illegal memory access, whichever unit makes it. compute-sanitizer does
// not see all of those, as tensor maps and bulk copies are no loads and stores of a thread.
#pragma once

#ifdef TFK_WITH_CUDA

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace transformer_kernels::testing {

inline void check_runtime(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}
inline void check_driver(CUresult status) {
  if (status != CUDA_SUCCESS) throw std::runtime_error("CUresult " + std::to_string(status));
}

// A function of the driver, asked of the runtime: tests do not link with the driver.
template <class Function>
Function* driver_function(const char* name) {
  constexpr unsigned kSinceCuda = 12000;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_runtime(
      cudaGetDriverEntryPointByVersion(name, &entry, kSinceCuda, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) throw std::runtime_error(name);
  return reinterpret_cast<Function*>(entry);
}

struct DriverMemory {
  decltype(cuMemAddressReserve)* reserve =
      driver_function<decltype(cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(cuMemCreate)* create = driver_function<decltype(cuMemCreate)>("cuMemCreate");
  decltype(cuMemMap)* map = driver_function<decltype(cuMemMap)>("cuMemMap");
  decltype(cuMemSetAccess)* allow = driver_function<decltype(cuMemSetAccess)>("cuMemSetAccess");
  decltype(cuMemUnmap)* unmap = driver_function<decltype(cuMemUnmap)>("cuMemUnmap");
  decltype(cuMemRelease)* release = driver_function<decltype(cuMemRelease)>("cuMemRelease");
  decltype(cuMemAddressFree)* free =
      driver_function<decltype(cuMemAddressFree)>("cuMemAddressFree");

  static const DriverMemory& get() {
    static const DriverMemory functions;
    return functions;
  }
};

// The end of the memory that an allocation touches.
enum class Edge { kBegin, kEnd };

// Pages of device 0, with kGuardBytes of addresses without a page on either side.
class GuardedPages {
 public:
  static constexpr std::size_t kBytes = std::size_t{4} << 20;
  static constexpr std::size_t kGuardBytes = std::size_t{4} << 20;

  GuardedPages() {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    check_driver(driver_.reserve(&reserved_, kBytes + 2 * kGuardBytes, 0, 0, 0));
    begin_ = reserved_ + kGuardBytes;
    check_driver(driver_.create(&pages_, kBytes, &kind, 0));
    check_driver(driver_.map(begin_, kBytes, 0, pages_, 0));
    CUmemAccessDesc access{};
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check_driver(driver_.allow(begin_, kBytes, &access, 1));
  }
  // After an illegal access nothing can be freed: what these return says no more.
  ~GuardedPages() {
    driver_.unmap(begin_, kBytes);
    driver_.release(pages_);
    driver_.free(reserved_, kBytes + 2 * kGuardBytes);
  }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  // Aligned to 16 bytes: of a number of bytes that is no multiple of 16, the last page holds up to
  // 15 more.
  void* at(Edge edge, std::size_t bytes) const {
    constexpr std::size_t kStep = 16;
    const std::size_t taken = (bytes + kStep - 1) / kStep * kStep;
    if (taken > kBytes) throw std::length_error("more bytes than guarded pages have");
    return reinterpret_cast<void*>(edge == Edge::kBegin ? begin_ : begin_ + kBytes - taken);
  }
  bool holds(const void* memory) const {
    const auto address = reinterpret_cast<CUdeviceptr>(memory);
    return address >= begin_ && address < begin_ + kBytes;
  }

 private:
  const DriverMemory& driver_ = DriverMemory::get();
  CUdeviceptr reserved_ = 0;
  CUdeviceptr begin_ = 0;
  CUmemGenericAllocationHandle pages_ = 0;
};

// Allocations, each at an edge of pages of its own. Pages are made once, and used again.
class GuardedMemory {
 public:
  explicit GuardedMemory(Edge edge) : edge_(edge) {}

  void* allocate(std::size_t bytes) {
    std::size_t i = 0;
    while (i != taken_.size() && taken_[i]) ++i;
    if (i == taken_.size()) {
      pages_.push_back(std::make_unique<GuardedPages>());
      taken_.push_back(false);
    }
    void* const memory = pages_[i]->at(edge_, bytes);
    taken_[i] = true;
    return memory;
  }
  void release(const void* memory) {
    for (std::size_t i = 0; i != taken_.size(); ++i) {
      if (pages_[i]->holds(memory)) taken_[i] = false;
    }
  }

 private:
  Edge edge_;
  std::vector<std::unique_ptr<GuardedPages>> pages_;
  std::vector<bool> taken_;
};

}  // namespace transformer_kernels::testing

#endif
