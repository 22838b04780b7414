// SPDX-License-Identifier: MIT
#pragma once

#include <limits>

#include "core/check.h"

namespace transformer_kernels {

// Throws Error unless `cap` can bound scores, cap tanh(score / cap), or is 0 and so no bound. What
// float32 holds as infinity would make them NaN.
inline void check_softcap(const char* op, const char* name, double cap) {
  check_value(cap >= 0 && cap <= std::numeric_limits<float>::max(), op, ": ", name, " is ", cap,
              ", expected a finite number, 0 or above");
}

}  // namespace transformer_kernels
