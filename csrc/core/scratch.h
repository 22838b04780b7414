// SPDX-License-Identifier: MIT
// Scratch memory of one call on the context's device, for ops that are composed of others.
#pragma once

#include <optional>

#include "core/cpu/scratch.h"
#ifdef TFK_WITH_CUDA
#include "core/cuda/scratch.h"
#endif

namespace transformer_kernels {

class Scratch {
 public:
  Scratch([[maybe_unused]] const char* op, const Context& context, std::size_t bytes) {
    if (context.device.type == DeviceType::kCpu) {
      data_ = cpu_.emplace(context, bytes).data();
    } else if (bytes > 0) {
#ifdef TFK_WITH_CUDA
      data_ = cuda_.emplace(op, context, bytes).as<void>();
#endif
    }
  }

  void* data() const { return data_; }

 private:
  std::optional<cpu::AlignedScratch> cpu_;
#ifdef TFK_WITH_CUDA
  std::optional<cuda::Scratch> cuda_;
#endif
  void* data_ = nullptr;
};

}  // namespace transformer_kernels
