// SPDX-License-Identifier: MIT
// The last step of a product whose terms are summed in parts (split-K).
#pragma once

#include "linear/product.h"

namespace transformer_kernels::cuda {

// Adds up the parts of a product's sums in their order, each a matrix of its own, and stores them
// in its result, or adds them to it. The kernel before says when this one may start.
void sum_parts(const Context& context, const Product& p, const float* partial, std::int64_t parts);

}  // namespace transformer_kernels::cuda
