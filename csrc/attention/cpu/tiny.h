// SPDX-License-Identifier: MIT
// Whether bfloat16 numbers are so small that products of pairs lose them: these take subnormal
// factors, and results, for 0.
#pragma once

#include <cstdint>

#include "core/cpu/isa.h"
#include "core/types.h"

namespace transformer_kernels::cpu {

using HasTinyNumber = bool (*)(const BFloat16* numbers, std::int64_t count);

// Some of `count` numbers is not 0 and below 2^-102, the smallest normal number times 2^24: its
// product with a probability that counts may be subnormal.
TFK_DECLARE_PER_ISA(bool has_tiny_number(const BFloat16* numbers, std::int64_t count))

}  // namespace transformer_kernels::cpu
