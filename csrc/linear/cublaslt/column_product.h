// SPDX-License-Identifier: MIT
// A product in cuBLASLt's column-major terms. Host-only: tested without a GPU.
#pragma once

#include <compare>
#include <optional>

#include "linear/cuda/engines.h"

namespace transformer_kernels::cuda {

// `rows` numbers that lie together, `cols` times, `step` apart.
struct Columns {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t step;

  auto operator<=>(const Columns&) const = default;
};

struct Factor {
  const void* data;
  Columns columns;
  bool is_transposed;  // its transpose is multiplied
};

// out = left right.
struct ColumnProduct {
  Factor left;
  Factor right;
  void* out;
  Columns columns;     // of out
  bool is_transposed;  // out is the transpose of the product's: a bias runs along its columns
};

// Steps over a single row or column mean nothing.
inline std::optional<Columns> columns_of(const Matrix& matrix, std::int64_t rows,
                                         std::int64_t cols) {
  if (rows > 1 && matrix.row_step != 1) return {};
  if (cols > 1 && matrix.col_step < rows) return {};
  return Columns{rows, cols, cols > 1 ? matrix.col_step : rows};
}

inline std::optional<Factor> factor_of(const Matrix& matrix, std::int64_t rows, std::int64_t cols) {
  if (const auto columns = columns_of(matrix, rows, cols)) {
    return Factor{matrix.data, *columns, false};
  }
  if (const auto columns = columns_of(matrix.transposed(), cols, rows)) {
    return Factor{matrix.data, *columns, true};
  }
  return {};
}

// A result by rows is its transpose by columns: out^T = b^T a^T. Nothing where the elements of no
// row or column lie together, or rows lie on each other.
inline std::optional<ColumnProduct> column_product(const Product& p) {
  const auto by_rows = columns_of(p.out.transposed(), p.cols, p.rows);
  const auto columns = by_rows ? by_rows : columns_of(p.out, p.rows, p.cols);
  const auto left =
      by_rows ? factor_of(p.b.transposed(), p.cols, p.terms) : factor_of(p.a, p.rows, p.terms);
  const auto right =
      by_rows ? factor_of(p.a.transposed(), p.terms, p.rows) : factor_of(p.b, p.terms, p.cols);
  if (!columns || !left || !right) return {};
  return ColumnProduct{*left, *right, p.out.data, *columns, by_rows.has_value()};
}

}  // namespace transformer_kernels::cuda
