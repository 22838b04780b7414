// SPDX-License-Identifier: MIT
// Products in the plainest form, and the error that results may have.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "numbers.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels::testing {

// Sums of products, and of their sizes.
struct Sums {
  Values sum, size;
};
// a (rows x terms) b^T, b being cols x terms: element (row, k) of a stands at
// row * a_row + k * a_term, and so of b.
struct Order {
  std::int64_t row, term;
};
inline Sums product(std::int64_t rows, std::int64_t cols, std::int64_t terms, const Values& a,
                    Order of_a, const Values& b, Order of_b, const Values& bias = {}) {
  Sums out{Values(rows * cols), Values(rows * cols)};
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      long double sum = bias.empty() ? 0 : bias[c];
      long double size = std::abs(sum);
      for (std::int64_t k = 0; k < terms; ++k) {
        const long double term = static_cast<long double>(a[r * of_a.row + k * of_a.term]) *
                                 b[c * of_b.row + k * of_b.term];
        sum += term;
        size += std::abs(term);
      }
      out.sum[r * cols + c] = static_cast<double>(sum);
      out.size[r * cols + c] = static_cast<double>(size);
    }
  }
  return out;
}

// old + the sums.
inline Sums added(const Values& old, Sums sums) {
  for (std::size_t i = 0; i < old.size(); ++i) {
    sums.sum[i] += old[i];
    sums.size[i] += std::abs(old[i]);
  }
  return sums;
}

// A rounding of the sums to dtype, where that has 16 bits, before they are added to what is there:
// cuBLASLt's.
inline Values rounding_before(DType dtype, const Sums& sums) {
  Values error(sums.sum.size());
  if (size_of(dtype) > 2) return error;
  for (std::size_t i = 0; i < error.size(); ++i) {
    error[i] = unit_roundoff(dtype) * std::abs(sums.sum[i]);
  }
  return error;
}

// The elements of a matrix by rows, in the order of its columns.
inline Values by_columns(const Values& values, std::int64_t rows, std::int64_t cols) {
  Values out(values.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) out[c * rows + r] = values[r * cols + c];
  }
  return out;
}

// One rounding to dtype, and those of a sum that is kept wide; `more` may be off in addition.
inline void expect_close(DType dtype, const Values& got, const Sums& expected,
                         const Values& more = {}) {
  const double wide = unit_roundoff(dtype == DType::kFloat64 ? dtype : DType::kFloat32);
  const double tiny = dtype == DType::kFloat16 ? 0x1p-24 : 1e-30;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = unit_roundoff(dtype) * std::abs(expected.sum[i]) * 1.01 +
                         20 * wide * expected.size[i] + tiny + (more.empty() ? 0 : more[i]);
    ASSERT_NEAR(got[i], expected.sum[i], error) << "element " << i;
  }
}

inline TensorView transposed(TensorView view) {
  std::swap(view.sizes[0], view.sizes[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

}  // namespace transformer_kernels::testing
