// SPDX-License-Identifier: MIT
// Two products of the same rows on CUDA, of which one is the gate of the other.
#pragma once

#include "linear/cuda/engines.h"
#include "linear/gated_problem.h"

namespace transformer_kernels::cuda {

// What up has for itself.
struct Up {
  Matrix b{};
  Matrix kept{};
  Matrix out{};
  Matrix z{};
  const void* bias = nullptr;
};

// Without z two products, gate and up, and
//
//   out = f(gate + bias) (up + bias of up), kept = gate and up as they are
//
// With it, that of gate and of up, one product and what it is the gradient of:
//
//   out = sum f'(g) u, out of up = sum f(g), kept = f(g) u
//   g = z + bias, u = z of up + bias of up
struct GatedProduct {
  Product gate;
  Up up;

  bool reads_z() const { return gate.z.data != nullptr; }
};

const char* hopper_refusal(const Context& context, const GatedProduct& p);
void run_hopper(const Context& context, const GatedProduct& p);

}  // namespace transformer_kernels::cuda
