// SPDX-License-Identifier: MIT
// A tensor of any rank seen as `rows` rows of `cols` contiguous elements.
#pragma once

#include <cstdint>

#include "core/check.h"

namespace transformer_kernels {

// One matrix operand: `data` may be null where the operand is optional.
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;  // elements from one row to the next
};

struct Shape2d {
  std::int64_t rows;
  std::int64_t cols;
};

// Rows are all dimensions but the last. `view` has rank >= 1.
constexpr Shape2d rows_and_cols(const TensorView& view) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < view.rank; ++i) rows *= view.sizes[i];
  return {rows, view.sizes[view.rank - 1]};
}

// The common distance between rows, in elements; -1 where the last stride is not 1 or the leading
// dimensions do not step evenly. Dimensions of size 1 have no say.
constexpr std::int64_t row_stride(const TensorView& view) {
  const int last = view.rank - 1;
  if (view.sizes[last] > 1 && view.strides[last] != 1) return -1;
  std::int64_t stride = -1;
  std::int64_t expected = -1;
  for (int i = last - 1; i >= 0; --i) {
    if (view.sizes[i] == 1) continue;
    if (stride < 0) {
      stride = view.strides[i];
    } else if (view.strides[i] != expected) {
      return -1;
    }
    expected = view.strides[i] * view.sizes[i];
  }
  return stride < 0 ? view.sizes[last] : stride;
}

inline std::int64_t checked_row_stride(const char* op, const char* argument,
                                       const TensorView& view) {
  const std::int64_t stride = row_stride(view);
  check_value(stride >= 0 || view.numel() == 0, op, ": ", argument,
              " has uneven strides, expected a last stride of 1 and one common row stride");
  return stride;
}

// The row stride of an output, whose rows may not overlap.
inline std::int64_t checked_output_stride(const char* op, const char* argument,
                                          const TensorView& view) {
  const std::int64_t stride = checked_row_stride(op, argument, view);
  const auto [rows, cols] = rows_and_cols(view);
  check_value(rows <= 1 || cols == 0 || stride >= cols, op, ": ", argument,
              " has overlapping rows (row stride ", stride, "), expected at least ", cols);
  return stride;
}

}  // namespace transformer_kernels
