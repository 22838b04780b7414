// SPDX-License-Identifier: MIT
// Root-mean-square normalisation of each head of q and k followed by the rotation (rope.h), in one
// pass: the "QK-norm" of models between their projections and attention.
//
//   rstd = 1 / sqrt(sum(x^2) / D + eps)
//   y    = rope(x * rstd * w)               for each row x of D numbers, w = weight or 1
//
// Without cos and sin nothing is rotated. The backward pass computes rstd again from x, which it
// reads anyway: a forward pass saves nothing but its inputs.
//
// Shapes, dtypes, strides and positions are those of rope.h; q_weight, k_weight and their gradients
// are (D,) and contiguous, all of q's dtype or all float32. The gradients dq_normed and dk_normed
// have the shape and dtype of q and k. Sums and products are in float32 (float64 for float64), and
// each result is rounded once. Aliasing: dq may be dq_normed's memory, and dk dk_normed's; a result
// of the forward pass may be its input's memory. Gradients of the weights are sums in an order that
// depends on the shape alone.
#pragma once

#include "transformer_kernels/rope/rope.h"

namespace transformer_kernels {

struct QkNormForward {
  TensorView q;
  TensorView k{};         // optional
  TensorView q_weight{};  // optional
  TensorView k_weight{};  // optional, with k
  RopeAngles angles{};    // optional: with cos and sin
  double eps = 1e-6;
  TensorView q_normed;
  TensorView k_normed{};  // with k
};

struct QkNormBackward {
  TensorView dq_normed;
  TensorView dk_normed{};  // with k
  TensorView q;
  TensorView k{};         // optional
  TensorView q_weight{};  // optional
  TensorView k_weight{};  // optional, with k
  RopeAngles angles{};
  double eps = 1e-6;
  TensorView dq;
  TensorView dk{};         // with k
  TensorView dq_weight{};  // optional
  TensorView dk_weight{};  // optional, with k
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void qk_norm_forward(const Context& context, const QkNormForward& arguments);
TFK_API void qk_norm_backward(const Context& context, const QkNormBackward& arguments);

}  // namespace transformer_kernels
