// SPDX-License-Identifier: MIT
// The engine for the tensor cores of every architecture from sm_80 on: mma.sync, cp.async.
#pragma once

#include "attention/attention_cuda.h"

namespace transformer_kernels::cuda {

extern const AttentionEngine<AttentionForwardProblem> kTensorCoreForward;
extern const AttentionEngine<AttentionBackwardProblem> kTensorCoreBackward;

}  // namespace transformer_kernels::cuda
