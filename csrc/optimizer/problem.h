// SPDX-License-Identifier: MIT
// A checked step of an optimizer, as backends receive it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/dispatch.h"
#include "transformer_kernels/optimizer/adamw.h"

namespace transformer_kernels {

enum class OptimizerRule : std::uint8_t { kAdamW, kLion };

// Settings are those of AdamW; Lion has no eps.
struct OptimizerProblem {
  const char* op;
  OptimizerRule rule;
  std::span<const OptimizerTensor> tensors;
  std::span<const AdamWGroup> groups;
  OptimizerOptions options;

  bool wants_norm() const {
    return options.max_norm > 0 || options.skips_nonfinite || options.norm.defined();
  }
};

std::string describe(const OptimizerProblem& problem);

namespace cpu {
void optimizer_step(const Context& context, const OptimizerProblem& problem);
}

}  // namespace transformer_kernels
