// SPDX-License-Identifier: MIT
// Products of Hopper's engine whose terms are summed in parts (parts_sm90a.cu).
#pragma once

#include "linear/product.h"

namespace transformer_kernels::cuda {

// Whether a product that Hopper's engine can multiply takes less time in parts. The kernel that
// adds up the parts is the only one of the engine that widens a result or adds to it.
bool runs_in_parts(const Context& context, const Product& p);

}  // namespace transformer_kernels::cuda
