// SPDX-License-Identifier: MIT
// The engine that takes every problem on every device: CUDA cores, tiles in shared memory, all
// arithmetic in accumulation precision.
#pragma once

#include "attention/attention_cuda.h"

namespace transformer_kernels::cuda {

extern const AttentionEngine<AttentionForwardProblem> kPlainForward;
extern const AttentionEngine<AttentionBackwardProblem> kPlainBackward;

}  // namespace transformer_kernels::cuda
