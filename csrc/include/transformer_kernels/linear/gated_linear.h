// SPDX-License-Identifier: MIT
// Two linear layers of the same input, one of which gates the other:
//
//   gate = x weight^T,   up = x up_weight^T,   y = f(gate + bias) (up + up_bias)
//
// and the gradients at a gate that is followed by a layer, y = h weight^T with h = f(gate + bias)
// (up + up_bias):
//
//   dgate = (dy weight) f'(gate + bias) (up + up_bias),   dup = (dy weight) f(gate + bias)
//
// The gradients of gated_linear_forward are gated_mlp_backward's without a second layer
// (mlp/mlp.h).
//
// Shapes: x is (..., K), weight and up_weight (N, K), bias and up_bias (N,), gate, up and y (...,
// N). A packed weight, (2N, K), is passed as two views of it. In linear_dgated, dy is (..., N),
// weight (N, K), bias and up_bias (K,), and gate, up, dgate, dup and h are (..., K). Any of the
// sizes may be 0. Strides, dtypes and sums are those of linear.h; bias and up_bias have one dtype.
// gate and up are rounded to the dtype of x before anything else, as if each were an op of its own:
// the backward pass of the pointwise op reads them. Aliasing: outputs overlap neither inputs nor
// each other, but that dgate may be exactly gate's memory, and dup that of up.
//
// On Hopper each op is one kernel if x has at least 17 rows, elements are 16-bit and rows 16-byte
// aligned, the columns of gate are a multiple of 8, biases are aligned pairs and, in the layer, the
// contracted dimension of both weights has stride 1. In all other cases it is GEMMs and a pointwise
// kernel.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/pointwise/pointwise.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct GatedLinearForward {
  TensorView x;
  TensorView weight;
  TensorView up_weight;
  TensorView bias{};  // either is optional
  TensorView up_bias{};
  Pointwise activation;  // a gated one
  TensorView gate{};     // both or neither
  TensorView up{};
  TensorView y;
};

struct LinearDgated {
  TensorView dy;
  TensorView weight;
  TensorView gate;
  TensorView up;
  TensorView bias{};  // either is optional
  TensorView up_bias{};
  Pointwise activation;  // a gated one
  TensorView dgate;
  TensorView dup;
  TensorView h{};  // optional
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void gated_linear_forward(const Context& context, const GatedLinearForward& arguments);
TFK_API void linear_dgated(const Context& context, const LinearDgated& arguments);

}  // namespace transformer_kernels
