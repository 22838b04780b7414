// SPDX-License-Identifier: MIT
// The backward pass on wgmma and TMA, for float16 and bfloat16 on sm_90a.
#pragma once

#include "attention/attention_cuda.h"

namespace transformer_kernels::cuda {

extern const AttentionEngine<AttentionBackwardProblem> kHopperBackward;

}  // namespace transformer_kernels::cuda
