// SPDX-License-Identifier: MIT
// The list of tensors that one call of an optimizer updates, and the options of all optimizers.
//
// All tensors of an entry have one shape and one layout in memory, without gaps. Entries share no
// memory. Arithmetic is in float32, in float64 where param is float64; then all tensors but the
// three single numbers are. Each element is computed in the same way whatever the threads.
//
// States are float32, of param's dtype, bfloat16, or uint8: codes of 8 bits, of which each block of
// 256 elements has one scale (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization",
// arXiv:2110.02861). A code is as there the place of a leading bit, which counts powers of ten, and
// a linear fraction below it; here its values meet at the powers of ten, so that the average of a
// code that is rounded at random is the number itself. Codes always are: a second moment that
// decays by a thousandth would never leave its code otherwise.
//
// Random bits are Philox numbers of the seed, the step, the number of the tensor and the place of
// the element, so that a run that resumes from its states goes on as it would have.
#pragma once

#include <cstdint>
#include <span>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

inline constexpr std::int64_t kStateBlock = 256;  // elements of uint8 states that share a scale

struct OptimizerTensor {
  TensorView param;             // float64, float32, float16, bfloat16; updated
  TensorView grad;              // of param's dtype, or float32
  TensorView exp_avg;           // the first moment; updated
  TensorView exp_avg_sq{};      // the second moment, of exp_avg's dtype; updated. Lion has none
  TensorView max_exp_avg_sq{};  // its largest so far, for AMSGrad; updated. Not uint8
  TensorView master{};          // float32; updated in place of a 16-bit param, which becomes
                                // what it rounds to
  TensorView exp_avg_scales{};  // of uint8 states: float32, one a block; updated
  TensorView exp_avg_sq_scales{};
  TensorView step;          // one float32 or float64: the steps so far; counted up
  int group = 0;            // the place of its settings
  std::int64_t number = 0;  // below 2^20; tells the random bits of tensors apart
};

struct OptimizerOptions {
  // Gradients are divided by grad_scale; found_inf other than 0 says that one of them is not
  // finite, and the call then writes nothing and counts no step. One float32 each, as PyTorch's
  // GradScaler has them.
  TensorView grad_scale{};
  TensorView found_inf{};
  // Gradients are multiplied by min(1, max_norm / (norm + 1e-6)), where norm is the square root of
  // the sum of all their squares, as torch.nn.utils.clip_grad_norm_ does. 0: they are not.
  double max_norm = 0;
  // A norm that is infinite or NaN counts as found_inf does.
  bool skips_nonfinite = false;
  // Gradients are written as well, divided by grad_scale.
  bool unscales_gradients = false;
  // Rounds bfloat16 states, or params without master, up or down at random, each with the
  // probability that makes the average exact.
  bool rounds_states_randomly = false;
  bool rounds_params_randomly = false;
  std::uint64_t seed = 0;
  TensorView norm{};  // optional: one float32, written, also where a step is skipped
};

}  // namespace transformer_kernels
