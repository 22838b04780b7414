// SPDX-License-Identifier: MIT
#include "core/cpu/scratch.h"

#include <cstdlib>
#include <new>

namespace transformer_kernels::cpu {
namespace {

void* allocate(void*, std::size_t bytes) { return std::malloc(bytes); }
void release(void*, void* memory) { std::free(memory); }

}  // namespace

Scratch::Scratch(const Context& context, std::size_t bytes)
    : workspace_(context.workspace.allocate ? context.workspace
                                            : Workspace{allocate, release, nullptr}),
      data_(bytes == 0 ? nullptr : workspace_.allocate(workspace_.user, bytes)) {
  if (bytes != 0 && data_ == nullptr) throw std::bad_alloc();
}

Scratch::~Scratch() {
  if (data_ != nullptr) workspace_.release(workspace_.user, data_);
}

}  // namespace transformer_kernels::cpu
