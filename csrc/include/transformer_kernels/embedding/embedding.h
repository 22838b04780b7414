// SPDX-License-Identifier: MIT
// Embeddings: rows of tables by their numbers, alone or as a sum over tables.
//
//   embedding      y[i] = weight[indices[i]]
//   embedding_add  y[i] = weight[tokens[i]] + position_weight[position of i] +
//   type_weight[types[i]]
//
// Backward: row r of a table's gradient is the sum of dy[i] over every i whose index is r, in the
// order of i; rows that no index names are zeros. The order of additions depends on the indices
// alone, so two calls give the same bits: there are no atomics.
//
// Shapes: a table is (rows, D), indices have any shape, and y and dy have that shape followed by D.
// The leading dimensions of tables, y, dy and gradients step by one common row stride, the last
// stride is 1; indices are contiguous. positions and types have the shape of tokens, or one that
// repeats along its leading dimensions: (T,) or (1, T) beside (B, T). Without positions, that of a
// token is first_position + its place in the last dimension of tokens.
// Dtypes: tables are float64, float32, float16 or bfloat16, all of one dtype, as are y, dy and the
// gradients; indices are int32 or int64. Sums are kept in float32, float64 for float64, and rounded
// once.
//
// An index out of range is refused on the CPU, with nothing written. On CUDA the host does not wait
// for a check: the row of y becomes NaN, and the index contributes to no gradient.
// Outputs may not overlap inputs.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct EmbeddingForward {
  TensorView weight;
  TensorView indices;
  TensorView y;
};

struct EmbeddingBackward {
  TensorView dy;
  TensorView indices;
  std::int64_t padding_idx = -1;    // this row of dweight is zeros; none where negative
  bool scale_grad_by_freq = false;  // divide row r by the number of indices that are r
  TensorView dweight;
};

struct EmbeddingAddForward {
  TensorView weight;
  TensorView tokens;
  TensorView position_weight;
  TensorView positions{};  // may be absent
  TensorView type_weight{};
  TensorView types{};  // both may be absent
  std::int64_t first_position = 0;
  TensorView y;
};

// A gradient that is absent is not computed.
struct EmbeddingAddBackward {
  TensorView dy;
  TensorView tokens;
  TensorView positions{};
  TensorView types{};
  std::int64_t first_position = 0;
  std::int64_t padding_idx = -1;  // of weight
  TensorView dweight{};
  TensorView dposition_weight{};
  TensorView dtype_weight{};
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void embedding_forward(const Context& context, const EmbeddingForward& arguments);
TFK_API void embedding_backward(const Context& context, const EmbeddingBackward& arguments);
TFK_API void embedding_add_forward(const Context& context, const EmbeddingAddForward& arguments);
TFK_API void embedding_add_backward(const Context& context, const EmbeddingAddBackward& arguments);

}  // namespace transformer_kernels
