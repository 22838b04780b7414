// SPDX-License-Identifier: MIT
// Compiled once per instruction set, because it reads every operand of attention.
#include "attention/cpu/tiny.h"

namespace transformer_kernels::cpu::TFK_ISA {

bool has_tiny_number(const BFloat16* numbers, std::int64_t count) {
  constexpr std::uint16_t kMagnitude = 0x7fff;
  constexpr std::uint16_t kLimit = (127 - 102) << 7;  // the bits of 2^-102
  std::uint16_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    // 0 becomes the largest number.
    const auto before = static_cast<std::uint16_t>((numbers[i].bits & kMagnitude) - 1);
    found |= static_cast<std::uint16_t>(before < kLimit - 1);
  }
  return found != 0;
}

}  // namespace transformer_kernels::cpu::TFK_ISA
