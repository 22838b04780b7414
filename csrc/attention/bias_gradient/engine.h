// SPDX-License-Identifier: MIT
// Bias gradient: the gradient of an additive bias, for engines with tensor cores, as a pass of its
// own.
//
// A CTA owns a tile of 64 by 64 of dbias, a warp a quarter of it, and goes through the terms of its
// sums: the tiles of scores to which this part of the bias was added, one for each batch, head or
// row that the bias is broadcast along. Where there are few tiles, the terms are split among CTAs,
// and a second kernel adds up the splits. Rows of operands come in slabs of 128 bytes.
//
//   time ->    one term
//   cp.async   q, k slabs ............ | dO, v slabs ......... | the next term's q, k slabs
//   a warp       q k^T += a slab ..., P | dO v^T += a slab ...  | sum += P (dP - delta)
#pragma once

#include "attention/common/row_gradients.h"

namespace transformer_kernels::cuda {

// Takes the problems of the tensor-core engine, whatever their gradients of q, k and v.
// `statistics` are those of the problem's rows; they are computed here where null.
void run_bias_gradient(const Context& context, const AttentionBackwardProblem& p,
                       const RowStatistics<float>* statistics = nullptr);

}  // namespace transformer_kernels::cuda
