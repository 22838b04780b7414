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
  bool rounds_states_randomly(const OptimizerTensor& tensor) const {
    return options.rounds_states_randomly && tensor.exp_avg.dtype == DType::kBFloat16;
  }
  bool rounds_param_randomly(const OptimizerTensor& tensor) const {
    return options.rounds_params_randomly && !tensor.master.defined() &&
           tensor.param.dtype == DType::kBFloat16;
  }
};

std::string describe(const OptimizerProblem& problem);

// The uses of random bits: each use of an element has bits of its own.
enum class RandomUse : std::uint64_t { kFirstMoment, kSecondMoment, kParam };

inline constexpr int kRandomPerCounter = 8;  // numbers of 16 bits

// The counter of Philox for the elements from `begin` on, a multiple of kRandomPerCounter, of the
// tensor with this number. Its key is the seed, its offset the step.
constexpr std::uint64_t random_counter(RandomUse use, std::int64_t number, std::int64_t begin) {
  return static_cast<std::uint64_t>(use) << 62 | static_cast<std::uint64_t>(number) << 40 |
         static_cast<std::uint64_t>(begin / kRandomPerCounter);
}

// The number of a step for random bits; what was loaded may be any number.
constexpr std::uint64_t random_step(double step) {
  constexpr double kMost = 0x1p63;
  return step >= 0 && step < kMost ? static_cast<std::uint64_t>(step) : 0;
}

// The factor of gradients that clips: 1, or what brings the norm to max_norm; NaN where the norm
// is.
constexpr double clip_of(double max_norm, double norm) {
  constexpr double kClipEpsilon = 1e-6;
  const double factor = max_norm / (norm + kClipEpsilon);
  return factor >= 1 ? 1 : factor;
}

namespace cpu {
void optimizer_step(const Context& context, const OptimizerProblem& problem);
}
namespace cuda {
void optimizer_step(const Context& context, const OptimizerProblem& problem);
}

}  // namespace transformer_kernels
