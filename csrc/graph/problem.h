// SPDX-License-Identifier: MIT
// Checked arguments. The family has four problems, some of them derivatives of others: reduce the
// rows across the edges of a segment, multiply each of them with the segment's row, spread the
// segment's row over its edges, and softmax.
#pragma once

#include <string>

#include "core/inline.h"
#include "core/rows.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels {

struct GraphIndices {
  const void* data = nullptr;
  bool wide = false;     // int64
  bool present = false;  // data may be null where there are none

  TFK_INLINE std::int64_t operator[](std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(data)[i]
                : static_cast<const std::int32_t*>(data)[i];
  }
};

struct Segments {
  std::int64_t count = 0;
  std::int64_t edges = 0;
  GraphIndices offsets{};
  GraphIndices indices{};
  GraphIndices order{};
  std::int64_t across_rows = 0;  // rows of the operand across the edges
  bool back = false;             // of the transpose

  // The number of the edge in a place.
  TFK_INLINE std::int64_t number(std::int64_t place) const {
    return order.present ? order[place] : place;
  }
};

// y[i] = reduce over the edges e of segment i of weight[e] x[j] / degree(j), j across e; where
// there are `chosen` edges of x, only of elements x[j][c] that have chosen e.
struct ReduceProblem {
  const char* op;
  DType dtype;
  bool largest;
  bool mean;
  Segments segments;
  std::int64_t cols;
  std::int64_t heads;
  Rows x;
  const void* weight;      // [edges][heads], or null
  GraphIndices degrees{};  // offsets of the segments that rows of x are of: j has the difference
  GraphIndices chosen{};   // [rows of x][cols]
  Rows y;
  void* new_chosen = nullptr;  // [segments][cols], of the largest
  bool new_chosen_wide = false;
};

// With `spread`, for each edge e of segment i, y[e] = weight[e] a[i]; else the products by heads
// y[e][h] = a[i][h] . b[across e][h]. Both are divided by the number of edges of i with `mean`.
// With `chosen`, only elements that have chosen e count.
struct EdgeProblem {
  const char* op;
  DType dtype;
  bool spread;
  bool mean;
  Segments segments;
  std::int64_t cols;
  std::int64_t heads;
  Rows a;
  Rows b;
  const void* weight;
  GraphIndices chosen{};  // [segments][cols]
  Rows y;
};

// The backward pass where there is a dy: x is then the forward pass's result.
struct SegmentSoftmaxProblem {
  const char* op;
  DType dtype;
  Segments segments;
  std::int64_t cols;
  Rows x;
  Rows dy;
  Rows y;
};

std::string describe(const ReduceProblem& problem);
std::string describe(const EdgeProblem& problem);
std::string describe(const SegmentSoftmaxProblem& problem);

namespace cpu {
void check_numbers(const Context& context, const ReduceProblem& problem);
void check_numbers(const Context& context, const EdgeProblem& problem);
void check_numbers(const Context& context, const SegmentSoftmaxProblem& problem);
void reduce_segments(const Context& context, const ReduceProblem& problem);
void run_edges(const Context& context, const EdgeProblem& problem);
void segment_softmax(const Context& context, const SegmentSoftmaxProblem& problem);
}  // namespace cpu
namespace cuda {
void reduce_segments(const Context& context, const ReduceProblem& problem);
void run_edges(const Context& context, const EdgeProblem& problem);
void segment_softmax(const Context& context, const SegmentSoftmaxProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
