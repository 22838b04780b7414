// SPDX-License-Identifier: MIT
#include "graph/check.h"

namespace transformer_kernels {

void GraphChecker::matrix(const char* name, const TensorView& view) const {
  check_.floating(name, view);
  check_value(view.rank == 2, op_, ": ", name, " has ", view.rank, " dimensions, expected 2");
}

void GraphChecker::matrix_like(const char* name, const TensorView& view, const char* like_name,
                               const TensorView& like) const {
  matrix(name, view);
  check_type(view.dtype == like.dtype, op_, ": ", name, " is ", name_of(view.dtype), ", expected ",
             name_of(like.dtype), " (the dtype of ", like_name, ")");
}

void GraphChecker::sized(const char* name, const TensorView& view, std::int64_t rows,
                         const char* rows_reason, std::int64_t cols,
                         const char* cols_reason) const {
  check_value(view.sizes[1] == cols, op_, ": ", name, " has ", view.sizes[1], " columns, expected ",
              cols, " (", cols_reason, ")");
  check_value(view.sizes[0] == rows, op_, ": ", name, " has ", view.sizes[0], " rows, expected ",
              rows, " (", rows_reason, ")");
}

GraphIndices GraphChecker::indices(const char* name, const TensorView& view, std::int64_t count,
                                   const char* reason) const {
  check_.indices(name, view);
  check_.packed(name, view, count, reason);
  return graph_indices(view);
}

GraphIndices GraphChecker::offsets(const char* name, const TensorView& view) const {
  check_.indices(name, view);
  check_value(view.rank == 1 && view.sizes[0] > 0, op_, ": ", name, " has shape ", shape_of(view),
              ", expected one dimension of at least 1");
  return indices(name, view, view.sizes[0], "its shape");
}

Segments GraphChecker::segments(const Edges& edges, const char* across_name,
                                const TensorView& across) const {
  Segments segments{.offsets = offsets("offsets", edges.offsets), .across_rows = across.sizes[0]};
  segments.count = edges.offsets.sizes[0] - 1;
  segments.edges = across.sizes[0];
  if (edges.indices.defined()) {
    segments.edges = edges.indices.numel();
    segments.indices = indices("indices", edges.indices, segments.edges, "its shape");
  }
  if (edges.order.defined()) {
    const std::string reason = concat(edges.indices.defined() ? "those of indices" : "the rows of ",
                                      edges.indices.defined() ? "" : across_name);
    segments.order = indices("order", edges.order, segments.edges, reason.c_str());
  }
  transposed_sizes(edges, segments);
  return segments;
}

void GraphChecker::transposed_sizes(const Edges& edges, const Segments& forward) const {
  if (edges.back_offsets.defined()) {
    indices("back_offsets", edges.back_offsets, forward.across_rows + 1, "a segment for each row");
  }
  if (edges.back_indices.defined()) {
    indices("back_indices", edges.back_indices, forward.edges, "the edges");
  }
  if (edges.back_order.defined()) {
    indices("back_order", edges.back_order, forward.edges, "the edges");
  }
}

Segments GraphChecker::transpose(const Edges& edges, const Segments& forward,
                                 const char* wanted_for) const {
  const auto present = [&](const char* name, const TensorView& view) {
    check_value(view.defined(), op_, ": ", name, " is missing, expected it for the gradient of ",
                wanted_for);
    return graph_indices(view);
  };
  Segments back{.count = forward.across_rows,
                .edges = forward.edges,
                .offsets = present("back_offsets", edges.back_offsets),
                .indices = present("back_indices", edges.back_indices),
                .across_rows = forward.count,
                .back = true};
  back.order = present("back_order", edges.back_order);
  return back;
}

std::int64_t GraphChecker::weight(const char* name, const TensorView& view,
                                  const Segments& segments, const char* like_name,
                                  const TensorView& like) const {
  matrix_like(name, view, like_name, like);
  check_value(view.sizes[0] == segments.edges, op_, ": ", name, " has ", view.sizes[0],
              " rows, expected ", segments.edges, " (one for each edge)");
  const std::int64_t heads = view.sizes[1];
  const std::int64_t cols = like.sizes[1];
  check_value(heads > 0 && cols % heads == 0, op_, ": ", name, " has ", heads,
              " columns, expected a divisor of ", cols, " (the columns of ", like_name, ")");
  check_.packed(name, view, view.numel(), "its shape");
  return heads;
}

}  // namespace transformer_kernels
