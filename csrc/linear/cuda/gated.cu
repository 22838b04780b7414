// SPDX-License-Identifier: MIT
// Gated layers and gradients at a gate: one kernel where an engine has it for the problem, else
// products and the pointwise kernel.
#include <array>

#include "core/cuda/built.h"
#include "core/cuda/scratch.h"
#include "core/select.h"
#include "linear/cuda/gated_product.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "gated_linear";
constexpr const char* kDgated = "linear_dgated";

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

GatedProduct product_of(const LinearDgatedProblem& p) {
  return {.gate = {.op = kDgated,
                   .dtype = p.dtype,
                   .rows = p.rows,
                   .cols = p.cols,
                   .terms = p.terms,
                   .a = matrix_of(p.dy),
                   .b = p.weight,
                   .out = matrix_of(p.dgate),
                   .kept = matrix_of(p.h),
                   .z = matrix_of(p.gate),
                   .bias = p.bias,
                   .bias_dtype = p.bias_dtype,
                   .activation = p.activation},
          .up = {.out = matrix_of(p.dup), .z = matrix_of(p.up), .bias = p.up_bias}};
}

constexpr auto engines() {
  std::array<Engine<GatedProduct>, kBuildsSm90a + kBuildsSm80> table{};
  std::size_t next = 0;
  if constexpr (kBuildsSm90a) table[next++] = {"hopper", hopper_refusal, run_hopper};
  if constexpr (kBuildsSm80) table[next++] = {"ampere", ampere_refusal, run_ampere};
  return table;
}
constexpr auto kEngines = engines();

// Runs the problem in one kernel, if an engine takes it; else returns false.
template <class Problem>
bool run_in_one(const Context& context, const Problem& p) {
  const GatedProduct product = product_of(p);
  const auto chosen = find_kernel(
      product.gate.op, kEngines, p,
      [&](const Engine<GatedProduct>& engine) { return engine.refusal(context, product); });
  if (chosen) kEngines[*chosen].run(context, product);
  return chosen.has_value();
}

}  // namespace

void gated_linear_forward(const Context& context, const GatedLinearProblem& p) {
  if (run_in_one(context, p)) return;
  const Scratch memory(kOp, context, bytes_in_three(p));
  run_in_three(context, p, memory.as<void>(), linear_forward, pointwise_forward);
}

void linear_dgated(const Context& context, const LinearDgatedProblem& p) {
  if (run_in_one(context, p)) return;
  const Scratch memory(kDgated, context, p.bytes_of_dh());
  const Rows dh = p.place_of_dh(memory.as<void>());
  linear_backward(context, p.product_to(dh));
  pointwise_backward(context, p.slope_times(dh));
}

}  // namespace transformer_kernels::cuda
