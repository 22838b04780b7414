// SPDX-License-Identifier: MIT
// Scaled dot-product attention with the softcaps, biases, masks, windows and sinks of current
// models.
//
//   s[i, j] = softcap(scale * sum_d q[i, d] k[j, d]) + bias[i, j] - slope * |i' - j|
//   z[i, j] = s[i, j] where query i sees key j, else -inf
//   lse[i]  = log(exp(sink) + sum_j exp(z[i, j]))
//   lse_rest[i] = the exact log-sum-exp less the rounded lse[i], where |lse[i]| is large: from 1e8
//                 on, the whole contribution of the scores other than the largest
//   out[i]  = sum_j keep[i, j] / (1 - dropout) * exp(z[i, j] - lse[i] - lse_rest[i]) * v[j]
//
// softcap(x) = c * tanh(x / c), or x where softcap is 0. i' = i + Tk - Tq lines the last query up
// with the last key (Diagonal::kBottomRight), i' = i the first with the first (kTopLeft). Query i
// sees key j where mask[i, j] is true, i' - window_left <= j <= i' + window_right (-1: no bound),
// and, if causal, j <= i'. A query that sees no key gives 0 and a log-sum-exp of -inf (that of the
// sink, where there is one), with gradient 0.
//
// Shapes: q is (B, Tq, H, D), k is (B, Tk, Hk, D), v is (B, Tk, Hk, Dv), out is (B, Tq, H, Dv) and
// lse and lse_rest are (B, H, Tq), contiguous; H is a multiple of Hk, and query head h reads head h
// / (H / Hk) of k and v. D and Dv are 1 to 256. The last stride is 1, other strides are free. bias
// and mask are (B, H, Tq, Tk), broadcast by strides of 0, with a last stride of 1 or 0.
// alibi_slopes is (B, H), broadcast by strides of 0; sinks is (H,). Sequences of different lengths:
// with cu_seqlens_q and cu_seqlens_k, q is (total Tq, H, D), and likewise k, v and out; lse and
// lse_rest are (H, total Tq). Both offsets are (sequences + 1,) and contiguous; the first number is
// 0, and none is below the one before it. Sequence b holds the rows from cu_seqlens[b] up to
// cu_seqlens[b + 1]; rows past the last are not read, and results are 0 there (-inf in lse).
// Dtypes: q, k, v, out and their gradients are all float64, float32, float16 or bfloat16; mask is
// bool; bias is of q's dtype or float32; lse, sinks, alibi_slopes and the gradients of lse, sinks
// and bias are float32 (float64 with float64); cu_seqlens are int32, seed is int64. Arithmetic is
// in float32 (float64 for float64).
//
// Dropout drops an element where 16 random bits are below round(65536 dropout), and `1 - dropout`
// above stands for the probability that follows. The bits are word e % 8 of Philox4x32-10 with key
// seed[0] and counter (e / 8, seed[1]), 64 bits each, e = row * pitch + j: row counts the elements
// of lse, pitch is Tk (the rows of k) rounded up to a multiple of 8. So the mask depends on no
// tile, thread or device, and the backward pass draws it again. seed is (2,) and contiguous, in
// memory of the CPU, which is read before the call returns, or of the device, which the kernels
// read: a CUDA graph that draws new numbers there drops other elements at each replay.
//
// Results do not depend on the number of threads. Memory beyond the arguments grows with T, not
// with its square. Outputs may not overlap inputs.
#pragma once

#include <cstdint>
#include <optional>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

enum class Diagonal : std::uint8_t { kBottomRight, kTopLeft };

// The inputs of both the forward and the backward pass.
struct AttentionInputs {
  TensorView q;
  TensorView k;
  TensorView v;
  TensorView bias{};              // optional, like all below
  TensorView mask{};              // true: takes part
  TensorView alibi_slopes{};      //
  TensorView sinks{};             // a logit of every row that has no value
  TensorView cu_seqlens_q{};      // both or neither; without bias and mask
  TensorView cu_seqlens_k{};      //
  TensorView seed{};              // needed with dropout
  std::optional<double> scale{};  // default: 1 / sqrt(D)
  bool causal = false;
  Diagonal diagonal = Diagonal::kBottomRight;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  double softcap = 0.0;
  double dropout = 0.0;
};

struct AttentionForward {
  AttentionInputs inputs;
  TensorView out;
  TensorView lse{};       // optional
  TensorView lse_rest{};  // optional
};

struct AttentionBackward {
  AttentionInputs inputs;
  TensorView out;  // what the forward pass returned, as lse
  TensorView lse;
  TensorView lse_rest{};  // optional: 0, which counts where some |lse| is above 1000
  TensorView dout;        // of out's shape
  TensorView dlse{};      // optional
  TensorView dq;
  TensorView dk;
  TensorView dv;
  TensorView dbias{};   // optional; contiguous, with a size of 1 where bias is broadcast
  TensorView dsinks{};  // optional
  // Whether the same arguments give the same bits on each call. If not, an engine may add up dq in
  // the order in which its parts become ready, where that is faster by more than 5 %; all other
  // results are repeatable in either case.
  bool deterministic = false;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void attention_forward(const Context& context, const AttentionForward& arguments);
TFK_API void attention_backward(const Context& context, const AttentionBackward& arguments);

}  // namespace transformer_kernels
