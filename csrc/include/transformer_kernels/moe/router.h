// SPDX-License-Identifier: MIT
// The router of a mixture of experts: from a token's logits to K of E experts and their weights.
//
//   z[j] = x[j] * (1 + jitter * u[j]) + noise * n[j]
//   s[j] = exp(z[j] - lse)                      softmax; lse = log(sum_j exp(z[j]))
//        = 1 / (1 + exp(-z[j]))                 sigmoid
//        = sqrt(log(1 + exp(z[j])))             square root of softplus
//   c[j] = s[j] + expert_bias[j]                only chooses; without a bias and groups, c is z
//   weights[k] = scale * s[i]                   i = indices[k], the k-th largest c
//              = scale * s[i] / (sum + 1e-20)   renormalized: sum over the K chosen
//   importance[q][j] = sum of s[j] / sum_i s[i] over the tokens of sequence q
//
// Renormalized softmax is the softmax over the chosen logits alone, and is computed as that. With
// groups, experts are `groups` runs of E / groups neighbours, and only those of the top_groups
// groups are chosen whose two largest c have the largest sums (DeepSeek-AI 2024, arXiv:2412.19437).
// Of equal numbers the one with the lowest index is larger; NaN is larger than all numbers.
//
// u is uniform in [-1, 1), n is standard normal. With W = ceil(E / 4), element (t, j) has word j %
// 4 of the Philox4x32-10 counter t * W + j / 4, of which the highest bit is 1 for n. A word w of 32
// bits is u = int32(w) / 2^31; words a, b of a pair (0, 1) or (2, 3) are the normal numbers
// r cos(h), r sin(h), where r = sqrt(-2 log((a + 0.5) / 2^32)) and h = 2 pi (b + 0.5) / 2^32.
//
// Shapes: x and dx are (T, E) with a last stride of 1; expert_bias is (E), without gaps; weights,
// indices and dweights are (T, K), importance and dimportance (Q, E), lse and dlse (T), all without
// gaps. The T / Q tokens of a sequence follow one another. K <= 16 and K <= E <= 4096; with groups
// E <= 512, groups divides E and is at most 32, and the chosen groups have K experts or more.
// Dtypes: x is float64, float32, float16 or bfloat16, and dx has the same; expert_bias has it or is
// float32; indices are int32; all others are float32, or float64 where x is, as is the arithmetic.
// Sums have a fixed order. Outputs may not overlap inputs.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };

// Options of the scores, which both passes are given.
struct RouterOptions {
  RouterScore score = RouterScore::kSoftmax;
  bool renormalize = false;
  double scale = 1;
  double jitter = 0;  // from 0 to 1
  double noise = 0;   // at least 0
  TensorView seed{};  // of jitter and noise: a seed and an offset, 2 int64 on the CPU or beside x
};

struct MoeRouterForward {
  TensorView x;
  TensorView expert_bias{};  // optional
  RouterOptions options{};
  std::int64_t groups = 1;
  std::int64_t top_groups = 1;
  TensorView weights;
  TensorView indices;
  TensorView importance{};  // optional
  TensorView lse{};         // optional
};

struct MoeRouterBackward {
  TensorView dweights{};     // optional
  TensorView dimportance{};  // optional
  TensorView dlse{};         // optional
  TensorView x;
  TensorView indices;
  RouterOptions options{};
  TensorView dx;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void moe_router_forward(const Context& context, const MoeRouterForward& arguments);
TFK_API void moe_router_backward(const Context& context, const MoeRouterBackward& arguments);

}  // namespace transformer_kernels
