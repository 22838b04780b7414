// SPDX-License-Identifier: MIT
// Whole numbers rounded up; none is negative.
#pragma once

#include <cstdint>

namespace transformer_kernels {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// `count` rounded up to a multiple of `step`.
constexpr std::int64_t rounded_up(std::int64_t count, std::int64_t step) {
  return divide_up(count, step) * step;
}

}  // namespace transformer_kernels
