// SPDX-License-Identifier: MIT
// The matrices of a product as Hopper's TMA takes them.
#pragma once

#include "core/cuda/tensor_map.h"
#include "core/cuda/wgmma.cuh"
#include "linear/product.h"

namespace transformer_kernels::cuda {

constexpr Major major_of(bool terms_together) { return terms_together ? Major::kK : Major::kOther; }
// The contracted dimension is the columns of a and the rows of b.
constexpr Major major_of_a(const Product& p) { return major_of(p.a.col_step == 1); }
constexpr Major major_of_b(const Product& p) { return major_of(p.b.row_step == 1); }

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
