// SPDX-License-Identifier: MIT
// Cross-entropy of a linear layer, whose logits are in memory one chunk of rows at a time, and the
// log-probabilities of given tokens.
//
//   logits = x linear_weight^T + linear_bias      rounded to the dtype of x
//   loss   = cross_entropy(logits, target)        as in loss/cross_entropy.h
//   log_probs, entropy, accuracy                  as in loss/token_log_probs.h
//
// A chunk is a product that computes logits, passes over them, the last of which overwrites them
// with their gradient, and two products with that. The gradients of a reduced loss may be computed
// in the forward pass, for a dloss of 1: three products a row, and scale_gradient multiplies them
// by another dloss. The backward pass computes the logits again: four products. There a loss and an
// entropy that both have a gradient take a second chunk of memory, of half as many rows each.
//
// Shapes: x and dx are (..., K) with a last stride of 1 and leading dimensions that step by one
// common row stride; target, log_probs and the saved tensors are (...); linear_weight is (V, K) of
// any strides, linear_bias and weight are (V,). loss, entropy, accuracy and their gradients are
// (...) without a reduction, else of no dimension; `weight` is for the loss alone, so that the mean
// of an entropy or an accuracy is over all rows that are not ignored. A gradient has the shape of
// its tensor. All but x, dx and linear_weight are contiguous.
// Dtypes: x is float64, float32, float16 or bfloat16, and linear_weight and dx are of the same;
// linear_bias, weight, loss, dloss, dlinear_weight and dlinear_bias are of that or float32; target
// is int32 or int64; all else is float32, or float64 where x is.
// Sums: a gradient of a parameter is summed over the chunks in its own dtype where that is the
// arithmetic's. One of 16 bits is summed in float32 and rounded once; but that of the weight, over
// up to 4 chunks and without float32_sums, is rounded at each chunk, which takes no memory. The
// order of a sum depends on the sizes, on chunk_bytes and on the device alone.
// Memory: a chunk's logits, some numbers a row, and sums in float32 come from the context's
// workspace. Outputs overlap neither inputs nor each other.
#pragma once

#include <cstdint>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/loss/cross_entropy.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// The layer, and the most bytes of its logits in memory, but at least a row; 0 stands for 64 MiB on
// a CPU, and elsewhere for as many as linear_weight has, between 512 MiB and 1 GiB.
struct LinearLossLayer {
  TensorView x;
  TensorView linear_weight;
  TensorView linear_bias{};  // optional
  std::int64_t chunk_bytes = 0;
};

// Each is optional.
struct LinearLossGradients {
  TensorView dx{};
  TensorView dlinear_weight{};
  TensorView dlinear_bias{};
  bool float32_sums = false;
};

struct LinearCrossEntropyInputs {
  LinearLossLayer layer;
  TensorView target;
  TensorView weight{};  // optional
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  double z_loss = 0;
  double softcap = 0;
  Reduction reduction = Reduction::kMean;
};

struct LinearCrossEntropyForward {
  LinearCrossEntropyInputs inputs;
  TensorView loss;
  TensorView entropy{};   // optional
  TensorView accuracy{};  // optional
  // The saved tensors of the backward pass, of which the first three come together, and the last is
  // for the entropy's.
  TensorView top{};
  TensorView spread{};
  TensorView share{};
  TensorView mean{};
  LinearLossGradients gradients{};  // of the loss, for a dloss of 1
};

// One of dloss and dentropy may be absent.
struct LinearCrossEntropyBackward {
  LinearCrossEntropyInputs inputs;
  TensorView dloss{};
  TensorView dentropy{};
  TensorView top;
  TensorView spread;
  TensorView share{};  // with dloss
  TensorView mean{};   // with dentropy
  LinearLossGradients gradients;
};

// All results are optional; the last three are for the backward pass.
struct LinearTokenLogProbsForward {
  LinearLossLayer layer;
  TensorView target;
  std::int64_t ignore_index = -100;
  double softcap = 0;
  TensorView log_probs{};
  TensorView entropy{};
  TensorView accuracy{};
  TensorView top{};
  TensorView spread{};
  TensorView mean{};
};

// One of dlog_probs and dentropy may be absent.
struct LinearTokenLogProbsBackward {
  LinearLossLayer layer;
  TensorView target;
  std::int64_t ignore_index = -100;
  double softcap = 0;
  TensorView dlog_probs{};
  TensorView dentropy{};
  TensorView top;
  TensorView spread;
  TensorView mean{};  // with dentropy
  LinearLossGradients gradients;
};

// Throws Error, with nothing written, when an argument does not meet the contract above; the
// message begins with the name of the op inside that refuses it, whose x are the logits where it is
// one of a loss.
TFK_API void linear_cross_entropy_forward(const Context& context,
                                          const LinearCrossEntropyForward& arguments);
TFK_API void linear_cross_entropy_backward(const Context& context,
                                           const LinearCrossEntropyBackward& arguments);
TFK_API void linear_token_log_probs_forward(const Context& context,
                                            const LinearTokenLogProbsForward& arguments);
TFK_API void linear_token_log_probs_backward(const Context& context,
                                             const LinearTokenLogProbsBackward& arguments);

}  // namespace transformer_kernels
