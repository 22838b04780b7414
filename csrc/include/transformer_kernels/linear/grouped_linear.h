// SPDX-License-Identifier: MIT
// Linear layers of groups of rows, each group with a weight of its own: the experts of a mixture.
// Row i belongs to group g if offsets[g] <= i < offsets[g + 1]; row(i) is x_rows[i] where x_rows is
// given, else i, and factor(i) is 1 where factors are not given.
//
//   y[i] = factor(i) (x[row(i)] weight[g]^T + bias[g])
//
//   dz[i] = factor(i) dy[dy_rows[i]],   dx[i] = dz[i] weight[g]
//   dweight[g] = the sum of dz[i]^T x[row(i)] over the rows of g,   dbias[g] = the sum of dz[i]
//
// two layers of which one gates the other:
//
//   gate[i] = x[row(i)] weight[g]^T + bias[g],   up[i] = x[row(i)] up_weight[g]^T + up_bias[g]
//   y[i] = f(gate[i]) up[i]
//
// and the gradients at a gate that is followed by a layer without bias, with a row factor:
// y[i] = factor(i) a[i] weight[g]^T with a[i] = f(gate[i]) up[i]:
//
//   da[i] = dy[dy_rows[i]] weight[g],   dfactors[i] = the sum of da[i] a[i] over columns
//   dgate[i] = factor(i) da[i] f'(gate[i]) up[i],   dup[i] = factor(i) da[i] f(gate[i])
//   h[i] = factor(i) a[i]
//
// Shapes, for M rows in G groups: offsets is (G + 1,), x_rows, dy_rows, factors and dfactors are
// (M,); x is (M, K), or (T, K) with x_rows; dy is (M, N), or (T, N) with dy_rows; weight and
// up_weight are (G, N, K), bias and up_bias (G, N), y, gate and up (M, N). In
// grouped_linear_dgated, gate, up, dgate, dup and h are (M, K). A gradient has the shape of its
// tensor, but dx and the gradients of gates have M rows. A packed weight, (G, 2N, K), is passed as
// two views of it. Any of the sizes may be 0, and any group may have no rows.
//
// Offsets are ascending int32, begin with 0 and end with at most M: rows past the end belong to no
// group, are not read, and those of results hold nothing in particular. The CPU refuses other
// offsets. On CUDA they are read by the kernels alone: the host waits for nothing, and a graph that
// was captured runs with what the memory holds when it is launched.
// x_rows and dy_rows are int32, in any order, any row any number of times. An index out of range is
// refused on the CPU, with nothing written; on CUDA it stands for a row of zeros.
//
// Strides: rows have a last stride of 1 and one common row stride. Each weight has any strides.
// bias, dbias, offsets, indices and factors are contiguous. Dtypes: x is float64, float32, float16
// or bfloat16 and all others have the same dtype, except that biases, dweight and dbias may be
// float32; factors and dfactors are float32 (float64 for float64). Products are summed in float32
// (float64 for float64). gate and up are rounded to the dtype of x before f; what has a factor may
// be rounded before it, too. Accumulation is that of linear.h; a group without rows has gradients
// of 0, or adds nothing. Outputs overlap neither inputs nor each other.
//
// On Hopper products of 16-bit elements are fast where rows are 16-byte aligned, columns of results
// a multiple of 8, and, of a gated layer, the contracted dimension of both weights has stride 1.
// Rows that an index names come at half the rate of rows that lie in order: by its bytes a copy in
// order takes less time than it saves, where there is memory for one (docs/decisions/0022).
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/pointwise/pointwise.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct GroupedLinearForward {
  TensorView x;
  TensorView weight;
  TensorView bias{};  // optional
  TensorView offsets;
  TensorView x_rows{};   // optional
  TensorView factors{};  // optional
  TensorView y;
};

// Each output is optional; without one, its accumulate_... means nothing.
struct GroupedLinearBackward {
  TensorView dy;
  TensorView x{};       // with dweight
  TensorView weight{};  // with dx
  TensorView offsets;
  TensorView x_rows{};   // optional, of x
  TensorView dy_rows{};  // optional, of dy
  TensorView factors{};  // optional
  TensorView dx{};
  TensorView dweight{};
  TensorView dbias{};
  bool accumulate_dx = false;
  bool accumulate_dweight = false;
  bool accumulate_dbias = false;
};

struct GroupedGatedLinearForward {
  TensorView x;
  TensorView weight;
  TensorView up_weight;
  TensorView bias{};  // either is optional
  TensorView up_bias{};
  TensorView offsets;
  TensorView x_rows{};   // optional
  Pointwise activation;  // a gated one
  TensorView gate{};     // both or neither
  TensorView up{};
  TensorView y;
};

struct GroupedLinearDgated {
  TensorView dy;
  TensorView weight;
  TensorView gate;
  TensorView up;
  TensorView offsets;
  TensorView dy_rows{};  // optional
  TensorView factors{};  // optional
  Pointwise activation;  // a gated one
  TensorView dgate;
  TensorView dup;
  TensorView h{};         // optional
  TensorView dfactors{};  // optional
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void grouped_linear_forward(const Context& context, const GroupedLinearForward& arguments);
TFK_API void grouped_linear_backward(const Context& context,
                                     const GroupedLinearBackward& arguments);
TFK_API void grouped_gated_linear_forward(const Context& context,
                                          const GroupedGatedLinearForward& arguments);
TFK_API void grouped_linear_dgated(const Context& context, const GroupedLinearDgated& arguments);

}  // namespace transformer_kernels
