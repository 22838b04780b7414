// SPDX-License-Identifier: MIT
// The next token of each sequence, drawn from its logits.
//
//   z[i] = x[i] + bias[i]                         i is a token, x are the logits of a sequence
//   z[i] = z[i] < 0 ? z[i] r : z[i] / r           where i is among the previous tokens; r is their
//                                                 repetition penalty
//   z[i] = z[i] - frequency c[i] - presence [c[i] > 0]
//                                                 c[i] previous tokens behind the prompt are i
//   z[i] = -infinity                              where i is not allowed
//   w[i] = 2^((z[i] - max z) log2(e) / temperature)
//
// Then filters take tokens out, each of those that are left by the ones before; those that are left
// keep their w, which is 0 for all others:
//
//   top_k      keeps i where fewer than top_k tokens have a larger z
//   top_p      keeps i where the tokens of larger z have less than top_p of the sum of w
//   min_p      keeps i where w[i] >= min_p
//   typical_p  keeps i where the tokens of smaller d have less than typical_p of the sum of w;
//              d[i] is the distance of log w[i] from its mean, which w weighs
//
// These are the processors of Hugging Face's transformers in their order. Of equal numbers all are
// kept, or none. The likeliest token always passes all filters but the last.
//
// The token is the first whose running sum of w passes u times the whole sum; u = m / 2^53, where m
// are the upper 53 bits of the first two words of Philox4x32-10 (the key is the sequence's seed,
// the counter its position, the offset 0). w are whole multiples of 2^-40, so that sums are exact
// in any order: a token depends on nothing but its own logits, parameters, seed and position. The
// single operations of w are those of csrc/decode/sampling/weights.h, on every device.
//
//   temperature 0, and below 2^-126, takes the first token of the largest z; no filter runs
//   NaN        the first token whose z is NaN is taken
//   nothing    a row without a z above -infinity has token -1, and on the CPU the call throws at
//              its end; so has, on CUDA, one whose parameters, which are checked on the CPU alone,
//              leave no token
//
// Shapes: logits (B, V), with a last stride of 1; V is 1 to 2^20. parameters (B, 8) or (1, 8),
// each row as SamplingParameters has them; seed and position (B); previous (B, L), of which numbers
// that are no token are ignored, and prompt_lengths (B), the first of them that belong to the
// prompt; bias (B, V) or (1, V); allowed as bias, of bool, or of int32 with a bit for each token:
// (., ceil(V / 32)), bit i % 32 of word i / 32. tokens (B), log_probs (B), top_tokens and
// top_log_probs (B, N), N <= V, probabilities (B, V). Without gaps, but for the logits.
// Dtypes: logits are float64, float32, float16 or bfloat16 and computed in float32; seed, position,
// previous, prompt_lengths, tokens and top_tokens are int64; all others are float32.
//
// log_probs are those of the model: of x, before all parameters; top_tokens are the N likeliest,
// the likeliest first and of equal ones the first. Those of a row with NaN are NaN, and its top
// tokens -1. probabilities are those that the token was drawn with.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// The parameters of one sequence; with these values a stage changes nothing.
struct SamplingParameters {
  float temperature = 1;         // 0 or more
  float top_k = 0;               // a whole number; 0: all
  float top_p = 1;               // from 0 to 1
  float min_p = 0;               // from 0 to 1
  float typical_p = 1;           // from 0 to 1
  float repetition_penalty = 1;  // more than 0
  float presence_penalty = 0;
  float frequency_penalty = 0;
};

struct SampleLogits {
  TensorView logits;
  TensorView parameters;
  TensorView seed;
  TensorView position;
  TensorView previous{};        // optional, as are all below but the tokens
  TensorView prompt_lengths{};  // by default 0
  TensorView bias{};
  TensorView allowed{};
  TensorView tokens;
  TensorView log_probs{};
  TensorView top_tokens{};  // with top_log_probs
  TensorView top_log_probs{};
  TensorView probabilities{};
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void sample_logits(const Context& context, const SampleLogits& arguments);

}  // namespace transformer_kernels
