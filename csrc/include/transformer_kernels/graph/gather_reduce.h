// SPDX-License-Identifier: MIT
// Messages along the edges of a graph, and their sums, without a tensor of all messages.
//
//   gather_reduce  y[i] = reduce over the edges e of segment i of weight[e] x[across e]
//   edge_dot       y[e][h] = sum over d of a[i][h][d] b[across e][h][d], i the segment of e
//
// reduce is the sum, the mean (the sum divided by the number of edges, whatever they weigh) or the
// largest message, 0 without edges, NaN where any message is. Each op is the other's derivative:
//
//   dx[j] = sum over the edges e with row j across of weight[e] dy[segment of e]
//   dweight[e][h] = sum over d of dy[i][h][d] x[across e][h][d]
//
// With the largest, only the message that `chosen` names has a gradient: among equal ones the first
// in the order of places. Sums are in the order of places, in parts whose borders depend on offsets
// alone, in float32 (float64 for float64), and rounded once: two calls give the same bits.
//
// Shapes: x (M, C), y (N, C), weight (E, H) where H divides C: column c belongs to head c / (C /
// H). Without indices x has a row for each edge, by its number. Rows of x, a, b, y and of gradients
// step by one common stride, the last stride is 1; weight and chosen are contiguous.
// Dtypes: float64, float32, float16 or bfloat16, one for all; chosen is int32 or int64.
// Outputs may not overlap inputs.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/graph/edges.h"

namespace transformer_kernels {

enum class Reduce : std::int64_t { kSum, kMean, kMax };

struct GatherReduceForward {
  TensorView x;
  Edges edges;
  TensorView weight{};  // may be absent
  Reduce reduce = Reduce::kSum;
  TensorView y;
  TensorView chosen{};  // (N, C), the edges' numbers, -1 of no edges; of kMax alone
};

// A gradient that is absent is not computed. With indices, dx reads the transpose; everything else
// reads what the forward pass reads.
struct GatherReduceBackward {
  TensorView dy;
  TensorView x{};  // for dweight
  Edges edges;
  TensorView weight{};
  TensorView chosen{};  // of kMax
  Reduce reduce = Reduce::kSum;
  TensorView dx{};
  TensorView dweight{};
};

struct EdgeDotForward {
  TensorView a;
  TensorView b;
  Edges edges;
  TensorView y;  // (E, H)
};

struct EdgeDotBackward {
  TensorView dy;
  TensorView a;
  TensorView b;
  Edges edges;
  TensorView da{};
  TensorView db{};
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void gather_reduce_forward(const Context& context, const GatherReduceForward& arguments);
TFK_API void gather_reduce_backward(const Context& context, const GatherReduceBackward& arguments);
TFK_API void edge_dot_forward(const Context& context, const EdgeDotForward& arguments);
TFK_API void edge_dot_backward(const Context& context, const EdgeDotBackward& arguments);

}  // namespace transformer_kernels
