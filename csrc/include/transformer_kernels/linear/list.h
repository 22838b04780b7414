// SPDX-License-Identifier: MIT
// Linear layers that share an input and have separate parameters, such as queries, keys and values.
//
//   y[i] = x weights[i]^T + biases[i]
//
//   dx = the sum over i of dy[i] weights[i],   dweights[i] = dy[i]^T x,
//   dbiases[i] = the sum of the rows of dy[i]
//
// Each layer is one of linear.h's without an activation, and keeps that contract; layers have
// columns of their own. The results of several layers may be columns of one tensor. dx is summed in
// the order of the layers, and rounded to its dtype after each. A layer whose dy is absent takes no
// part in a backward pass: what accumulates stays, and its other gradients are 0. Of a list that is
// optional, all or single entries may be left out. Aliasing: outputs overlap neither inputs nor
// each other.
#pragma once

#include <span>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct LinearListForward {
  TensorView x;
  std::span<const TensorView> weights;
  std::span<const TensorView> biases{};  // optional
  std::span<const TensorView> ys;
};

struct LinearListBackward {
  std::span<const TensorView> dys;
  TensorView x;
  std::span<const TensorView> weights;
  TensorView dx{};                         // optional
  std::span<const TensorView> dweights{};  // optional
  std::span<const TensorView> dbiases{};   // optional
  bool accumulate_dx = false;
  bool accumulate_dweights = false;
  bool accumulate_dbiases = false;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void linear_list_forward(const Context& context, const LinearListForward& arguments);
TFK_API void linear_list_backward(const Context& context, const LinearListBackward& arguments);

}  // namespace transformer_kernels
