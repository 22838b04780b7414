// SPDX-License-Identifier: MIT
// Scores of tokens, one in each row of logits: the log-probability of the row's token, the entropy
// of all, and whether the token is the most likely one.
//
//   z[j]     = x[j], or softcap * tanh(x[j] / softcap) where softcap > 0
//   d[j]     = z[j] - top                      top    = max_j z[j]
//   p[j]     = exp(d[j] - spread)              spread = log(sum_j exp(d[j]))
//   log_prob = d[t] - spread                   mean   = sum_j p[j] d[j]
//   entropy  = spread - mean                   accuracy = 1 if x[t] is the first of the largest x
//   dx[j]    = (dlog_prob * ([j = t] - p[j]) + dentropy * p[j] * (mean - d[j])) * dz[j] / dx[j]
//
// t is the row's token. Both terms of the entropy, which is in nats, are positive. In a row whose
// token is ignore_index all results are 0, and the gradient is 0, whatever its logits are. A token
// that is neither ignore_index nor one of [0, C) is an Error on the CPU; on CUDA the row's results
// and its gradient are NaN. A logit of -inf is a class of probability 0; where all logits are -inf,
// or one is inf or NaN, the row's log_prob, entropy and gradient are NaN, and beside NaN its
// accuracy is 0.
//
// Shapes: x and dx are (..., C) with a last stride of 1 and leading dimensions that step by one
// common row stride; all others are (...) without gaps. dentropy may also be one number for all
// rows, and is divided by the number in `divisor` where there is one.
// Dtypes: x is float64, float32, float16 or bfloat16, and dx has the same; target is int32 or
// int64; all others are float32, or float64 where x is, as is the arithmetic, whose sums have a
// fixed order. Outputs may not overlap inputs, except that dx may be x's memory where it does not
// accumulate.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// All results are optional; the last three are for the backward pass.
struct TokenLogProbsForward {
  TensorView x;
  TensorView target;
  std::int64_t ignore_index = -100;
  double softcap = 0;  // 0: none
  TensorView log_probs{};
  TensorView entropy{};
  TensorView accuracy{};
  TensorView top{};
  TensorView spread{};
  TensorView mean{};
};

struct TokenLogProbsBackward {
  TensorView dlog_probs{};  // optional, as dentropy
  TensorView dentropy{};
  TensorView divisor{};  // optional
  TensorView x;
  TensorView target;
  TensorView top;
  TensorView spread;
  TensorView mean{};  // with dentropy
  std::int64_t ignore_index = -100;
  double softcap = 0;
  TensorView dx;
  bool accumulate = false;  // dx is added to what the tensor holds
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void token_log_probs_forward(const Context& context, const TokenLogProbsForward& arguments);
TFK_API void token_log_probs_backward(const Context& context,
                                      const TokenLogProbsBackward& arguments);

}  // namespace transformer_kernels
