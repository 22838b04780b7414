// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels::cpu {

// Whether an output of this size leaves the last-level cache before anyone can read it again. Such
// an output is written past the caches: that saves reading its lines first, a third of the traffic.
bool exceeds_cache(std::int64_t bytes);

// Whether a matrix of the problem's size leaves the last-level cache.
template <class Problem>
bool leaves_cache(const Problem& p) {
  return exceeds_cache(p.rows * p.cols * size_of(p.dtype));
}

}  // namespace transformer_kernels::cpu
