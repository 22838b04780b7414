// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace transformer_kernels::cpu {

// Whether an output of this size leaves the last-level cache before anyone can read it again. Such
// an output is written past the caches: that saves reading its lines first, a third of the traffic.
bool exceeds_cache(std::int64_t bytes);

}  // namespace transformer_kernels::cpu
