// SPDX-License-Identifier: MIT
// Checks that the ops of the family share.
#pragma once

#include "graph/problem.h"
#include "transformer_kernels/graph/edges.h"

namespace transformer_kernels {

constexpr GraphIndices graph_indices(const TensorView& view) {
  return {view.data, view.dtype == DType::kInt64, true};
}

class GraphChecker {
 public:
  GraphChecker(const char* op, Device device) : op_(op), check_(op, device) {}

  const ArgumentChecker& arguments() const { return check_; }

  // A floating-point matrix, and one of the same dtype.
  void matrix(const char* name, const TensorView& view) const;
  void matrix_like(const char* name, const TensorView& view, const char* like_name,
                   const TensorView& like) const;
  // `view` has this many rows and columns; the message gives the reasons.
  void sized(const char* name, const TensorView& view, std::int64_t rows, const char* rows_reason,
             std::int64_t cols, const char* cols_reason) const;

  // The edges that lead to rows of `across`: each of its rows is one without indices.
  Segments segments(const Edges& edges, const char* across_name, const TensorView& across) const;
  // The edges of the transpose, each with a segment of `forward` across. Refused if absent; the
  // message says what it is wanted for.
  Segments transpose(const Edges& edges, const Segments& forward, const char* wanted_for) const;

  // (E, H) of the dtype of `like`, contiguous; the heads.
  std::int64_t weight(const char* name, const TensorView& view, const Segments& segments,
                      const char* like_name, const TensorView& like) const;

  Rows input(const char* name, const TensorView& view) const {
    return {view.data, checked_row_stride(op_, name, view)};
  }
  Rows output(const char* name, const TensorView& view) const {
    return {view.data, checked_output_stride(op_, name, view)};
  }

 private:
  GraphIndices indices(const char* name, const TensorView& view, std::int64_t count,
                       const char* reason) const;
  GraphIndices offsets(const char* name, const TensorView& view) const;
  void transposed_sizes(const Edges& edges, const Segments& forward) const;

  const char* op_;
  ArgumentChecker check_;
};

}  // namespace transformer_kernels
