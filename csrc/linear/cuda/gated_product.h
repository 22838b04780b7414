// SPDX-License-Identifier: MIT
// Two products of the same rows on CUDA, one of which gates the other.
#pragma once

#include "linear/cuda/engines.h"
#include "linear/gated_problem.h"

namespace transformer_kernels::cuda {

// The operands and results of up; it shares all others with gate.
struct Up {
  Matrix b{};
  Matrix kept{};
  Matrix out{};
  Matrix z{};
  const void* bias = nullptr;
};

// Without z: two products, gate and up, and
//
//   out = f(gate + bias) (up + bias of up), kept = gate and up as they are
//
// With z, the saved gate and up: one product, of which these are gradients:
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
const char* ampere_refusal(const Context& context, const GatedProduct& p);
void run_ampere(const Context& context, const GatedProduct& p);

}  // namespace transformer_kernels::cuda
