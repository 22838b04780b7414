// SPDX-License-Identifier: MIT
// Sm80: the engine for the tensor cores of every architecture from sm_80 on, by mma.sync and
// cp.async.
//
// A CTA owns a block of rows of one head, of queries (forward, dq) or of keys (dk and dv), and
// streams the other side past them in tiles, through two stages of shared memory. A warp owns 16 or
// 32 of the rows: products with a tile stay in its registers, from where they are the left operand
// of the next product. Warps share only the operands that they read.
//
//   time ->    forward; a bar is a barrier of the CTA
//   cp.async   q, k0 v0 | k1 v1                      | k2 v2                      | ...
//   a warp              | q k0^T, softmax, O += P v0 | q k1^T, softmax, O += P v1 | ...
//
// The backward pass makes statistics of the rows first; then dk and dv, and dq, are kernels of
// their own, each of which recomputes P and dS.
#pragma once

#include <array>

#include "attention/cuda.h"
#include "attention/sm80/plan.h"

namespace transformer_kernels::cuda {

// One row of the table of engines for each plan.
extern const std::array<AttentionEngine<AttentionForwardProblem>, kTensorCoreForwardCount>
    kTensorCoreForwardEngines;
extern const std::array<AttentionEngine<AttentionBackwardProblem>, kTensorCoreBackwardCount>
    kTensorCoreBackwardEngines;

}  // namespace transformer_kernels::cuda
