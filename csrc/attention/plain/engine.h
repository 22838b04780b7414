// SPDX-License-Identifier: MIT
// Plain: the engine that takes every problem on every device. CUDA cores, tiles in shared memory,
// all arithmetic in accumulation precision.
//
// A CTA owns a tile of 64 queries of one head (forward, dq) or of 64 keys (dk and dv, a kernel
// each) and some columns of the result, and walks over the tiles of the other side. A thread owns 4
// by 4 numbers of every product. The steps of a CTA do not overlap; other CTAs on the SM hide its
// waits.
//
//   time ->   one tile of keys, forward
//   memory    q, k: 32 terms |     | 32 terms |     | ...         | v: 32 keys |     | ...
//   CUDA                     | q k^T          | q k^T ... softmax              | p v
#pragma once

#include "attention/cuda.h"

namespace transformer_kernels::cuda {

extern const AttentionEngine<AttentionForwardProblem> kPlainForwardEngine;
extern const AttentionEngine<AttentionBackwardProblem> kPlainBackwardEngine;

}  // namespace transformer_kernels::cuda
