// SPDX-License-Identifier: MIT
// The engine for the tensor cores of every architecture from sm_80 on: mma.sync, cp.async.
#pragma once

#include <array>

#include "attention/attention_cuda.h"
#include "attention/tensor_core_plan.h"

namespace transformer_kernels::cuda {

// One row of the table of engines for each plan.
extern const std::array<AttentionEngine<AttentionForwardProblem>, kTensorCoreForwards>
    kTensorCoreForward;
extern const std::array<AttentionEngine<AttentionBackwardProblem>, kTensorCoreBackwards>
    kTensorCoreBackward;

}  // namespace transformer_kernels::cuda
