// SPDX-License-Identifier: MIT
// Softmax over the edges of each segment, column by column.
//
//   y[e] = exp(x[e] - m) / sum over the edges f of the segment of e of exp(x[f] - m), m their
//   largest x
//   dx[e] = y[e] (dy[e] - sum over the same edges of y[f] dy[f])
//
// x, y, dy and dx are (E, H), by the edges' numbers (edges.h); their rows step by one common
// stride, the last stride is 1. float64, float32, float16 or bfloat16, one for all; sums are in
// float32, float64 for float64. A NaN makes its own segment and column NaN, and no other. The
// edges' offsets and order are read, nothing else of them. Outputs may not overlap inputs.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/graph/edges.h"

namespace transformer_kernels {

struct SegmentSoftmaxForward {
  TensorView x;
  Edges edges;
  TensorView y;
};

struct SegmentSoftmaxBackward {
  TensorView dy;
  TensorView y;
  Edges edges;
  TensorView dx;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void segment_softmax_forward(const Context& context,
                                     const SegmentSoftmaxForward& arguments);
TFK_API void segment_softmax_backward(const Context& context,
                                      const SegmentSoftmaxBackward& arguments);

}  // namespace transformer_kernels
