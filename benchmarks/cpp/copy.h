// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "core/cpu/isa.h"

namespace transformer_kernels::cpu {

// The ceiling of a kernel that reads and writes each byte once: copies of floats, with stores
// through the caches and past them. `to` is aligned to 64 bytes.
struct Copies {
  void (*cached)(const float* from, float* to, std::int64_t count);
  void (*streaming)(const float* from, float* to, std::int64_t count);
};

TFK_DECLARE_PER_ISA(extern const Copies copies)

}  // namespace transformer_kernels::cpu
