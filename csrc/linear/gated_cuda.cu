// SPDX-License-Identifier: MIT
// Hopper's kernel where it takes the layer, else two products and the pointwise kernel.
#include "core/cuda/built.h"
#include "core/cuda/scratch.h"
#include "core/log.h"
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

const char* refusal(const Context& context, const GatedProduct& product) {
  if constexpr (kBuildsSm90a) return hopper_refusal(context, product);
  return "this build has none for it";
}

}  // namespace

void gated_linear_forward(const Context& context, const GatedLinearProblem& p) {
  const GatedProduct product = product_of(p);
  const char* const reason = refusal(context, product);
  if (log_dispatch()) {
    log_line(concat(kOp, " ", describe(p), ": hopper",
                    reason == nullptr ? " runs" : concat(" refused: ", reason)));
  }
  if constexpr (kBuildsSm90a) {
    if (reason == nullptr) return run_hopper(context, product);
  }
  const Scratch memory(kOp, context, bytes_in_three(p));
  run_in_three(context, p, memory.as<void>(), linear_forward, pointwise_forward);
}

}  // namespace transformer_kernels::cuda
