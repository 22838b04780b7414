// SPDX-License-Identifier: MIT
// Two products of the same rows on CUDA, of which one is the gate of the other.
#pragma once

#include "linear/gated_problem.h"
#include "linear/product.h"

namespace transformer_kernels::cuda {

// The second operand of up, what is kept of it, and its bias.
struct Up {
  Matrix b{};
  Matrix kept{};
  const void* bias = nullptr;
};

// out = f(gate + bias) (up + bias of up), kept = gate and up as they are.
struct GatedProduct {
  Product gate;
  Up up;
};

const char* hopper_refusal(const Context& context, const GatedProduct& p);
void run_hopper(const Context& context, const GatedProduct& p);

}  // namespace transformer_kernels::cuda
