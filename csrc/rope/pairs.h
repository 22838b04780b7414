// SPDX-License-Identifier: MIT
// The rotation of one row in float, for kernels that rotate rows on their way elsewhere. Sources
// that are compiled once per instruction set (core/cpu/isa.h) include it.
#pragma once

#include <cstdint>

#include "core/cpu/isa.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// Rotates the first 2 * `pairs` numbers of a row: neighbours are a pair, or the halves are.
void rotate_pairs(float* row, const float* cosines, const float* sines, std::int64_t pairs,
                  bool interleaved) {
  const std::int64_t step = interleaved ? 2 : 1;
  float* const other = row + (interleaved ? 1 : pairs);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = row[i * step];
    const float b = other[i * step];
    row[i * step] = a * cosines[i] - b * sines[i];
    other[i * step] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace
}  // namespace transformer_kernels::cpu::TFK_ISA
