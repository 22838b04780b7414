// SPDX-License-Identifier: MIT
// Cross-entropy over the last dimension: of class labels or of class probabilities, with the
// arguments of torch.nn.functional.cross_entropy, a soft cap of the logits and a z-loss.
//
//   z[j]    = x[j], or softcap * tanh(x[j] / softcap) where softcap > 0
//   lse     = log(sum_j exp(z[j]))
//   a[j]    = w[j] * (label_smoothing / C + (1 - label_smoothing) * q[j])
//   loss    = sum_j a[j] * (lse - z[j]) + z_loss * v * lse^2
//   dx[j]   = dloss * ((sum_k a[k] + 2 z_loss * v * lse) * exp(z[j] - lse) - a[j]) * dz[j] / dx[j]
//
// q is 1 for the row's label t and 0 elsewhere, or the row of probabilities, which need not sum
// to 1; w is the weight, 1 where there is none; v is the weight of a row in the mean: w[t] for a
// label, 1 for probabilities. A row whose label is ignore_index counts nothing: its loss and its
// gradient are 0, whatever its logits are. A mean is the sum over the rows divided by the sum of
// their v: NaN where no row counts.
//
// A label that is neither ignore_index nor one of [0, C) is an Error on the CPU. On CUDA the host
// does not wait for a check: the row's loss, gradient and v are NaN, and so are sums and means. A
// logit of -inf is a class of probability 0; where all logits are -inf, or one is inf or NaN, the
// row's loss and gradient are NaN.
//
// Shapes: x and dx are (..., C) with a last stride of 1 and leading dimensions that step by one
// common row stride, and so are probabilities; labels are (...); weight is (C,). Loss and dloss are
// (...) without a reduction, else of no dimension; total is of no dimension, top, spread
// and share are (...). All but x, dx and probabilities are without gaps.
// Dtypes: x is float64, float32, float16 or bfloat16; probabilities and dx are of the same dtype;
// labels are int32 or int64; weight, loss and dloss are of x's dtype or float32; top, spread,
// share and total are float32, or float64 where x is. Arithmetic is in float32 (float64 for
// float64), whose sums have a fixed order. Outputs may not overlap inputs, except that dx may be
// x's memory.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

enum class Reduction : std::uint8_t { kNone, kMean, kSum };

struct CrossEntropyForward {
  TensorView x;
  TensorView target{};         // labels, or ...
  TensorView probabilities{};  // ... these: one of the two
  TensorView weight{};         // optional
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;  // in [0, 1]
  double z_loss = 0;
  double softcap = 0;  // 0: none
  Reduction reduction = Reduction::kMean;
  TensorView loss;
  // The saved tensors of the backward pass. All are optional; the first three come together. lse =
  // top + spread, kept in two parts so that logits of any size keep their differences; share is the
  // sum of a.
  TensorView top{};
  TensorView spread{};
  TensorView share{};
  TensorView total{};  // what the mean is divided by
  TensorView dx{};     // optional: the gradient for a dloss of 1, in the same pass over x
  // Optional, with dx and without a reduction: what the gradient is divided by, one number of the
  // arithmetic's type. For rows that are a part of a mean's, whose total reduce_losses computes.
  TensorView divisor{};
};

struct CrossEntropyBackward {
  TensorView dloss;
  TensorView x;
  TensorView target{};
  TensorView probabilities{};
  TensorView weight{};
  TensorView top;
  TensorView spread;
  TensorView share;
  TensorView total{};  // of a mean
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  double z_loss = 0;
  double softcap = 0;
  Reduction reduction = Reduction::kMean;
  TensorView dx;
};

// x = x * by, in place, for x with any number of rows. `by` is one number of x's dtype or float32
// on x's device; if it is 1, nothing is read or written. For gradients that a forward pass has
// left.
struct ScaleGradient {
  TensorView x;
  TensorView by;
};

// The reduction alone, of losses that several calls without one have left: loss is their sum or
// mean, as that of cross_entropy_forward would be. losses, one a row, and total are of the
// arithmetic's type, and each of the two results is optional. A mean of other numbers of the rows
// that are not ignored, all of the same weight, is one without `weight`.
struct ReduceLosses {
  TensorView losses{};  // needed for loss
  TensorView target;
  TensorView weight{};       // optional
  std::int64_t classes = 0;  // C
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::kMean;  // kMean or kSum
  TensorView loss{};
  TensorView total{};  // of a mean
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void cross_entropy_forward(const Context& context, const CrossEntropyForward& arguments);
TFK_API void cross_entropy_backward(const Context& context, const CrossEntropyBackward& arguments);
TFK_API void reduce_losses(const Context& context, const ReduceLosses& arguments);
TFK_API void scale_gradient(const Context& context, const ScaleGradient& arguments);

}  // namespace transformer_kernels
