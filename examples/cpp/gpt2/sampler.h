// SPDX-License-Identifier: MIT
#pragma once

#include <transformer_kernels/decode/sample_logits.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tensor.h"

namespace gpt2 {

// How one sequence draws its next token; seed and position decide about it.
struct Draw {
  tfk::SamplingParameters parameters;
  std::int64_t seed = 0, position = 0;
};

// The next token of each sequence, of logits (B, V).
std::vector<std::int32_t> sample(std::span<float> logits, std::span<const Draw> draws);

}  // namespace gpt2
