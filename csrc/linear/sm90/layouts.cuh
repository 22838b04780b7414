// SPDX-License-Identifier: MIT
// The matrices of a product as Hopper's TMA takes them.
#pragma once

#include "core/cuda/tensor_map.h"
#include "linear/cuda/products.cuh"

namespace transformer_kernels::cuda {

// A matrix whose `inner` elements lie together, in boxes of `box_inner` by `box_outer`.
inline TensorMapLayout matrix_layout(DType dtype, void* data, std::int64_t inner,
                                     std::int64_t outer, std::int64_t step, int box_inner,
                                     int box_outer) {
  return {.dtype = dtype,
          .data = data,
          .sizes = {inner, outer, 1, 1, 1},
          .strides = {step, 0, 0, 0},
          .box = {box_inner, box_outer, 1, 1, 1},
          .rank = 2};
}

// A matrix, {cols, rows}, with two dimensions for rows (core/cuda/sm90/ragged.cuh): row r of place
// p is row r + p - box rows.
inline TensorMapLayout ragged_layout(TensorMapLayout matrix) {
  const std::int64_t rows = matrix.box[1];
  const std::int64_t step = matrix.strides[0];
  matrix.data = static_cast<char*>(matrix.data) - rows * step * size_of(matrix.dtype);
  matrix.sizes = {matrix.sizes[0], rows, matrix.sizes[1] + 1, 1, 1};
  matrix.strides = {step, step, 0, 0};
  matrix.rank = 3;
  return matrix;
}

// `extent` rows of a, or columns of b, by terms.
inline TensorMapLayout operand_layout(const Product& p, const Matrix& by_terms, Major major,
                                      std::int64_t extent, int box) {
  return major == Major::kK
             ? matrix_layout(p.dtype, by_terms.data, p.terms, extent, by_terms.row_step, 64, box)
             : matrix_layout(p.dtype, by_terms.data, extent, p.terms, by_terms.col_step, 64, 64);
}
inline bool is_even(const Product& p, const Matrix& result) {
  return p.cols % 8 == 0 && fits_tensor_map(matrix_layout(p.dtype, result.data, p.cols, p.rows,
                                                          result.row_step, 32, 1));
}
inline TensorMapLayout result_layout(const Product& p, const Matrix& result, int box_rows) {
  return matrix_layout(p.dtype, result.data, p.cols, p.rows, result.row_step, 32, box_rows);
}

}  // namespace transformer_kernels::cuda
