// SPDX-License-Identifier: MIT
// Matrices of products in a backend's memory, by rows or by columns.
#pragma once

#include <string>

#include "linear/problem.h"
#include "linear/product_reference.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {

struct ProductSizes {
  std::int64_t rows, terms, cols;
};
inline std::string name_of(const ProductSizes& s) {
  return std::to_string(s.rows) + 'x' + std::to_string(s.terms) + 'x' + std::to_string(s.cols);
}

inline Matrix matrix_in(const TestTensor& tensor, bool is_by_rows = true) {
  const TensorView view = tensor.view();
  const Matrix by_rows{view.data, view.strides[0], 1};
  return is_by_rows ? by_rows : by_rows.transposed();
}

// A factor by rows or by columns.
struct Stored {
  bool is_by_rows;
  TestTensor tensor;

  Stored(Backend& backend, DType dtype, std::int64_t rows, std::int64_t cols, const Values& values,
         bool by_rows, Layout layout)
      : is_by_rows(by_rows),
        tensor(backend, dtype, by_rows ? rows : cols, by_rows ? cols : rows,
               by_rows ? values : by_columns(values, rows, cols), layout) {}

  Matrix matrix() const { return matrix_in(tensor, is_by_rows); }
};

}  // namespace transformer_kernels::testing
