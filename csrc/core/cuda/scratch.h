// SPDX-License-Identifier: MIT
// Scratch memory of one call on a device: from the context's workspace, else stream-ordered.
#pragma once

#include "transformer_kernels/context.h"

namespace transformer_kernels::cuda {

class Scratch {
 public:
  Scratch(const char* op, const Context& context, std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  const Context& context_;
  void* memory_ = nullptr;
};

}  // namespace transformer_kernels::cuda
