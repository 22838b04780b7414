// SPDX-License-Identifier: MIT
// AdamW (Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101)
// over a list of tensors in one call.
//
//   g = grad * min(1, max_norm / norm) / grad_scale     -g where the group maximizes
//   step = step + 1
//   m = beta1 m + (1 - beta1) g                          exp_avg
//   v = beta2 v + (1 - beta2) g^2                        exp_avg_sq
//   p = p (1 - lr weight_decay)
//       - lr / (1 - beta1^step) m / (sqrt(v / (1 - beta2^step)) + eps)
//
// With max_exp_avg_sq, v in the last line is the largest v so far (AMSGrad).
#pragma once

#include <span>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/optimizer/tensors.h"

namespace transformer_kernels {

struct AdamWGroup {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool maximize = false;
  TensorView rate{};  // one float32 or float64 number, read in place of lr where it is given
};

struct AdamWStep {
  std::span<const OptimizerTensor> tensors;
  std::span<const AdamWGroup> groups;
  OptimizerOptions options{};
};

// Throws Error, with nothing written, when an argument does not meet the contract.
TFK_API void adamw_step(const Context& context, const AdamWStep& arguments);

}  // namespace transformer_kernels
