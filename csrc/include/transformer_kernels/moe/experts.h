// SPDX-License-Identifier: MIT
// The experts of a mixture: each is an MLP of its own, of the tokens that have a place with it.
//
//   gate[i] = x[tokens[i]] weight[e]^T + bias[e]
//   up[i] = x[tokens[i]] up_weight[e]^T + up_bias[e]
//   h[i] = f(gate[i]) up[i],   or f(gate[i]), of an activation without a gate
//   y[t] = sum_k weights[t, k] (h[i] down_weight[e]^T + down_bias[e]),   i = places[t, k]
//
// where expert e has the places offsets[e] to offsets[e + 1] - 1. offsets, tokens and places are
// those of moe_sort (moe/dispatch.h): a dropped assignment adds nothing, and its weight has a
// gradient of 0.
//
// Each pass is a sequence of the library's ops, whose headers have the rules of strides, dtypes and
// sums: linear/grouped_linear.h, pointwise/pointwise.h and moe/dispatch.h. No row of x or of dy is
// copied to its places: the products gather them. The forward pass keeps gate and up alone; the
// backward pass computes h again, and forms dweights where it has h, but computes the last layer
// again for them where the activation is not gated or there is a down_bias.
//
// Shapes: with N = T K places and E experts, x is (T, D), weights (T, K), offsets (E + 1,), tokens
// (N,), places (T, K); weight and up_weight are (E, F, D), bias and up_bias (E, F), down_weight
// (E, C, F), down_bias (E, C), gate and up (N, F), y (T, C). A gradient has the shape of its
// tensor. A weight that packs those of gate and up, (E, 2F, D), is passed as two views of it, and
// so are gate and up, and gradients. Rows of gate and up behind offsets[E] hold nothing in
// particular. Dtypes: all tensors have that of x, except that offsets, tokens and places are int32,
// weights and dweights float32 (float64 for float64), and gradients of parameters may be float32.
// Outputs overlap neither inputs nor each other.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/pointwise/pointwise.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct MoeExpertsForward {
  TensorView x;
  TensorView weights;
  TensorView offsets;
  TensorView tokens;
  TensorView places;
  TensorView weight;
  TensorView up_weight{};  // of a gated activation alone
  TensorView bias{};       // optional, as all biases
  TensorView up_bias{};    // of a gated activation alone
  TensorView down_weight;
  TensorView down_bias{};
  Pointwise activation;
  TensorView gate{};  // optional
  TensorView up{};    // of a gated activation alone, with gate
  TensorView y;
};

// Each output is optional.
struct MoeExpertsBackward {
  TensorView dy;
  TensorView x;  // this and all up to up as in the forward pass, which kept gate and up
  TensorView weights;
  TensorView offsets;
  TensorView tokens;
  TensorView places;
  TensorView weight;
  TensorView up_weight{};
  TensorView down_weight;
  TensorView down_bias{};
  Pointwise activation;
  TensorView gate;
  TensorView up{};
  TensorView dx{};
  TensorView dweights{};
  TensorView dweight{};
  TensorView dup_weight{};
  TensorView dbias{};
  TensorView dup_bias{};
  TensorView ddown_weight{};
  TensorView ddown_bias{};
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void moe_experts_forward(const Context& context, const MoeExpertsForward& arguments);
TFK_API void moe_experts_backward(const Context& context, const MoeExpertsBackward& arguments);

}  // namespace transformer_kernels
