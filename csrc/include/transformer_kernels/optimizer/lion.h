// SPDX-License-Identifier: MIT
// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675) over a
// list of tensors in one call.
//
//   g = grad * min(1, max_norm / norm) / grad_scale     -g where the group maximizes
//   p = p (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g)
//   m = beta2 m + (1 - beta2) g                          exp_avg
#pragma once

#include <span>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/optimizer/tensors.h"

namespace transformer_kernels {

struct LionGroup {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  bool maximize = false;
  TensorView rate{};  // one float32 or float64 number, read in place of lr where it is given
};

struct LionStep {
  std::span<const OptimizerTensor> tensors;  // without exp_avg_sq and max_exp_avg_sq
  std::span<const LionGroup> groups;
  OptimizerOptions options{};
};

// Throws Error, with nothing written, when an argument does not meet the contract.
TFK_API void lion_step(const Context& context, const LionStep& arguments);

}  // namespace transformer_kernels
