// SPDX-License-Identifier: MIT
// Speculative sampling (Leviathan et al. 2022, arXiv:2211.17192; Chen et al. 2023,
// arXiv:2302.01318): how many drafted tokens of each sequence the target keeps, and the token that
// follows them. Kept and following tokens have the target's distribution, whatever the draft is.
//
//   t[i], i < n, is kept where all before it are and u[i] q[i][t[i]] < p[i][t[i]]
//   the next token is drawn from max(p[k] - q[k], 0) behind k < n kept ones, from p[n] behind n
//
// p are the target's probabilities and q those that the tokens were drawn with, both divided by
// their sums; without q the draft has no chance in it: q[i][t[i]] is 1. A token outside of the
// vocabulary is never kept. Probabilities are w = multiples of 2^-40, of logits the w of
// sample_logits.h at temperature 1; NaN and negative numbers are 0. Where nothing is left of
// p[k] - q[k], the token is drawn from p[k], and where p has nothing either it is -1, and on the
// CPU the call throws at its end.
//
// u[i] and the draw of the next token are as in sample_logits.h, at positions position + i and
// position + k, with the offsets 1 and 2: independent of the draws that made the draft.
//
// Shapes: draft_tokens (B, N), draft (B, N, V), target (B, N + 1, V), the last two with a last
// stride of 1 and evenly spaced rows; lengths, seed, position, accepted and token (B); V is 1 to
// 2^20. n is the sequence's length, by default N.
// Dtypes: draft and target are alike, float64, float32, float16 or bfloat16, and computed in
// float32; all others are int64.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct SpeculativeAccept {
  TensorView draft_tokens;
  TensorView draft{};  // optional
  TensorView target;
  TensorView lengths{};  // optional
  TensorView seed;
  TensorView position;
  bool logits = false;  // draft and target are logits
  TensorView accepted;
  TensorView token;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void speculative_accept(const Context& context, const SpeculativeAccept& arguments);

}  // namespace transformer_kernels
