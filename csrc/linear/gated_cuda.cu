// SPDX-License-Identifier: MIT
// Hopper's kernel where it takes the layer, else two products and the pointwise kernel.
#include <array>

#include "core/cuda/built.h"
#include "core/cuda/scratch.h"
#include "core/select.h"
#include "linear/gated_product.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "gated_linear";

GatedProduct product_of(const GatedLinearProblem& p) {
  return {.gate = {.op = kOp,
                   .dtype = p.dtype,
                   .rows = p.rows,
                   .cols = p.cols,
                   .terms = p.terms,
                   .a = matrix_of(p.x),
                   .b = p.weight.transposed(),
                   .out = matrix_of(p.y),
                   .kept = matrix_of(p.gate),
                   .bias = p.bias,
                   .bias_dtype = p.bias_dtype,
                   .activation = p.activation},
          .up = {.b = p.up_weight.transposed(), .kept = matrix_of(p.up), .bias = p.up_bias}};
}

constexpr auto engines() {
  std::array<Engine<GatedProduct>, kBuildsSm90a> table{};
  if constexpr (kBuildsSm90a) table[0] = {"hopper", hopper_refusal, run_hopper};
  return table;
}
constexpr auto kEngines = engines();

}  // namespace

void gated_linear_forward(const Context& context, const GatedLinearProblem& p) {
  const GatedProduct product = product_of(p);
  const auto chosen = find_kernel(kOp, kEngines, p, [&](const Engine<GatedProduct>& engine) {
    return engine.refusal(context, product);
  });
  if (chosen) return kEngines[*chosen].run(context, product);
  const Scratch memory(kOp, context, bytes_in_three(p));
  run_in_three(context, p, memory.as<void>(), linear_forward, pointwise_forward);
}

}  // namespace transformer_kernels::cuda
