// SPDX-License-Identifier: MIT
// Two linear layers with an activation, or a gate, between them.
//
//   mlp:        z = x weight^T + bias                         h = f(z)
//   gated_mlp:  z = x weight^T,   up = x up_weight^T          h = f(z + bias) (up + up_bias)
//
//   y = h down_weight^T + down_bias                           y = h without down_weight
//
// Each pass is a sequence of the library's ops, whose headers have the formulas and the rules of
// strides, dtypes and sums: linear/linear.h, linear/gated_linear.h and pointwise/pointwise.h.
// Without down_weight the backward pass is that of linear_forward with an activation, or of
// gated_linear_forward.
//
// Shapes: x is (..., K), weight and up_weight (F, K), bias and up_bias (F,), down_weight (N, F),
// down_bias (N,), z, up and h (..., F), y (..., N), or (..., F) without down_weight; a gradient has
// the shape of its tensor. A weight that packs those of z and up, (2F, K), is passed as two views
// of it, and so are its bias and the gradients. Any of the sizes may be 0.
// Dtypes: all tensors have that of x, except that biases, their gradients, and those of weights may
// be float32; bias and up_bias have one dtype.
// Aliasing: outputs overlap neither inputs nor each other.
//
// Recomputation: the caller decides which of z (with up) and h the forward pass keeps, and gives
// the same to the backward pass, which computes again what it lacks.
// Memory: the workspace holds h in the forward pass where it is not kept; in the backward pass the
// gradients of z and up, and what is computed again. That pass goes over the hidden features in
// parts, and holds one part at a time. The gradient of x is rounded to the dtype of x after each.
#pragma once

#include <cstdint>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/linear/linear.h"
#include "transformer_kernels/pointwise/pointwise.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct MlpForward {
  TensorView x;
  TensorView weight;
  TensorView up_weight{};    // of gated_mlp alone
  TensorView bias{};         // optional
  TensorView up_bias{};      // optional, of gated_mlp alone
  TensorView down_weight{};  // optional
  TensorView down_bias{};    // optional
  Pointwise activation;      // of gated_mlp a gated one
  TensorView z{};            // optional
  TensorView up{};           // of gated_mlp alone, with z
  TensorView h{};            // optional
  TensorView y;
};

// Each output is optional.
struct MlpBackward {
  TensorView dy;
  TensorView x;  // this and all up to h as in the forward pass
  TensorView weight;
  TensorView up_weight{};
  TensorView bias{};
  TensorView up_bias{};
  TensorView down_weight{};
  Pointwise activation;
  TensorView z{};
  TensorView up{};
  TensorView h{};
  TensorView dx{};
  TensorView dweight{};
  TensorView dup_weight{};
  TensorView dbias{};
  TensorView dup_bias{};
  TensorView ddown_weight{};
  TensorView ddown_bias{};
  bool overwrite_z = false;         // the gradients of z and up are written over them
  bool accumulate_dweight = false;  // as in LinearBackward, of all weights
  bool accumulate_dbias = false;    // of all biases
  std::int64_t parts = 0;           // at most this many; 0 for a number that suits the sizes
  std::int64_t dweight_algorithm = kAnyAlgorithm;  // as in LinearBackward
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void mlp_forward(const Context& context, const MlpForward& arguments);
TFK_API void mlp_backward(const Context& context, const MlpBackward& arguments);
TFK_API void gated_mlp_forward(const Context& context, const MlpForward& arguments);
TFK_API void gated_mlp_backward(const Context& context, const MlpBackward& arguments);

}  // namespace transformer_kernels
