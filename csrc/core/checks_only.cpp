// SPDX-License-Identifier: MIT
#include "transformer_kernels/checks_only.h"

namespace transformer_kernels {

void checks_only(void*, std::int64_t, std::int64_t, RangeBody, void*) {}

}  // namespace transformer_kernels
