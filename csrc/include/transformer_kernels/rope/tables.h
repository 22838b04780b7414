// SPDX-License-Identifier: MIT
// Tables of cosines and sines for rope(), and the scaling of frequencies for longer contexts.
//
//   cos[p, f] = a cos(p w[f]),   sin[p, f] = a sin(p w[f]),   w[f] = base^(-2 f / R)
//
// for positions p < P and frequencies f < R / 2; a is 1, but for kYarn. With a scaling, w is
//
//   kLinear  w / factor (Chen et al. 2023, arXiv:2306.15595)
//   kLlama3  w (s + (1 - s) / factor), s = (turns - low_freq_factor) / (high_freq_factor -
//            low_freq_factor), from 0 to 1, turns = original_max_positions w / (2 pi)
//            (arXiv:2407.21783)
//   kYarn    w (1 - s + s / factor), s = (f - low) / (high - low), from 0 to 1, where low and high
//            are the indices, whole numbers with `truncate`, of the frequencies that turn beta_fast
//            and beta_slow times in original_max_positions; a is attention_factor, or 0.1
//            log(factor) + 1 where that is 0 and factor above 1 (Peng et al. 2023,
//            arXiv:2309.00071)
//
// Shapes: cos and sin are (P, R / 2), contiguous, R at least 2. Dtypes: both float32, which rope()
// takes beside q of any dtype, or both float64. They are computed in float64 and rounded once. They
// lie on the CPU; a program that runs rope() on a CUDA device copies them there. Aliasing: cos and
// sin do not overlap.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };

struct RopeTables {
  double base = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;                  // of all scalings
  double original_max_positions = 0;  // of kLlama3 and kYarn
  double low_freq_factor = 1;         // of kLlama3
  double high_freq_factor = 4;
  double beta_fast = 32;  // of kYarn
  double beta_slow = 1;
  bool truncate = true;
  double attention_factor = 0;
  TensorView cos{};
  TensorView sin{};
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void rope_tables(const Context& context, const RopeTables& arguments);

}  // namespace transformer_kernels
