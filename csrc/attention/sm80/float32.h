// SPDX-License-Identifier: MIT
// The tensor-core engine's kernels for float32, compiled beside those of 16 bits.
#pragma once

#include <array>

#include "attention/sm80/plan.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels::cuda {

template <class Problem>
using RunAttention = void (*)(const Context& context, const Problem& problem);

// How each plan runs; null for those of 16 bits.
extern const std::array<RunAttention<AttentionForwardProblem>, kTensorCoreForwardCount>
    kTensorCoreFloat32Forward;
extern const std::array<RunAttention<AttentionBackwardProblem>, kTensorCoreBackwardCount>
    kTensorCoreFloat32Backward;

}  // namespace transformer_kernels::cuda
