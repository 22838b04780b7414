// SPDX-License-Identifier: MIT
// The results that the ops should return, computed as plainly as the formulas of the public
// headers, and the error that each dtype may have. Sums are long doubles, so that float64 can be
// tested too.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numbers.h"

namespace transformer_kernels::testing {

struct Matrix {
  std::int64_t rows;
  std::int64_t cols;
};

struct NormReference {
  Values y, mean, rstd;
  double largest_term = 0;  // of the two that y is the sum of
};

// `weight` and `bias` have one number a column; `center` tells layer_norm from rms_norm.
inline NormReference norm_reference(Matrix m, bool center, const Values& s, const Values& weight,
                                    const Values& bias, double eps) {
  NormReference out{Values(s.size()), Values(m.rows), Values(m.rows)};
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const double* row = s.data() + r * m.cols;
    long double mean = 0;  // around the first element: the sum of large numbers would cost digits
    for (std::int64_t c = 0; center && c < m.cols; ++c) mean += row[c] - row[0];
    mean /= static_cast<long double>(m.cols);
    if (center && m.cols > 0) mean += row[0];
    long double variance = 0;
    for (std::int64_t c = 0; c < m.cols; ++c) variance += (row[c] - mean) * (row[c] - mean);
    variance /= static_cast<long double>(m.cols);
    out.mean[r] = static_cast<double>(mean);
    out.rstd[r] = static_cast<double>(1 / std::sqrt(variance + eps));
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const long double normal = (row[c] - mean) / std::sqrt(variance + eps);
      const auto scaled = static_cast<double>(normal * weight[c]);
      out.y[r * m.cols + c] = static_cast<double>(normal * weight[c] + bias[c]);
      if (std::isfinite(scaled)) {
        out.largest_term = std::max({out.largest_term, std::abs(scaled), std::abs(bias[c])});
      }
    }
  }
  return out;
}

struct NormGradients {
  Values dx, dweight, dbias;
  double largest_term = 0;  // of those that dx is the difference of
  double largest_norm = 0;  // of the columns that dweight and dbias are the sums of
};

// `dsum` may be empty. The statistics are given, as they are to the op.
inline NormGradients norm_gradients(Matrix m, bool center, const Values& dy, const Values& dsum,
                                    const Values& x, const Values& mean, const Values& rstd,
                                    const Values& weight) {
  NormGradients out{Values(x.size()), Values(m.cols), Values(m.cols)};
  std::vector<long double> dweight(m.cols), dbias(m.cols), squares(m.cols);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const std::int64_t first = r * m.cols;
    const double center_at = center ? mean[r] : 0;
    long double sum_g = 0;
    long double sum_gh = 0;
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const double h = (x[first + c] - center_at) * rstd[r];
      const double g = dy[first + c] * weight[c];
      sum_g += center ? g : 0;
      sum_gh += g * h;
      dweight[c] += dy[first + c] * h;
      dbias[c] += dy[first + c];
      squares[c] += dy[first + c] * dy[first + c] * (1 + h * h);
      out.largest_term = std::max(out.largest_term, std::abs(rstd[r] * g));
    }
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const double h = (x[first + c] - center_at) * rstd[r];
      const double g = dy[first + c] * weight[c];
      const long double inner = g - (sum_g + h * sum_gh) / static_cast<long double>(m.cols);
      const long double added = dsum.empty() ? 0 : dsum[first + c];
      out.dx[first + c] = static_cast<double>(rstd[r] * inner + added);
    }
  }
  for (long double square : squares) {
    out.largest_norm = std::max(out.largest_norm, static_cast<double>(std::sqrt(square)));
  }
  out.dweight.assign(dweight.begin(), dweight.end());
  out.dbias.assign(dbias.begin(), dbias.end());
  return out;
}

// `z` holds scaled and masked inputs, -inf where a mask hides an element. A row of nothing but -inf
// is one that `masked` hides entirely.
inline Values softmax_reference(Matrix m, const Values& z, bool masked, bool log) {
  Values y(z.size());
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const std::int64_t first = r * m.cols;
    double top = -kInfinity;
    bool all_hidden = masked;
    for (std::int64_t c = 0; c < m.cols; ++c) {
      top = std::max(top, z[first + c]);
      all_hidden = all_hidden && z[first + c] == -kInfinity;
    }
    long double sum = 0;
    for (std::int64_t c = 0; c < m.cols; ++c) sum += std::exp(z[first + c] - top);
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const double d = z[first + c] - top;
      const long double value = log ? d - std::log(sum) : std::exp(d) / sum;
      y[first + c] = all_hidden ? (log ? -kInfinity : 0) : static_cast<double>(value);
    }
  }
  return y;
}

inline Values softmax_gradient(Matrix m, const Values& dy, const Values& y, double scale,
                               bool masked, bool log) {
  Values dx(y.size());
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const std::int64_t first = r * m.cols;
    long double sum = 0;
    for (std::int64_t c = 0; c < m.cols; ++c) sum += dy[first + c] * (log ? 1 : y[first + c]);
    for (std::int64_t c = 0; c < m.cols; ++c) {
      const long double of_log = dy[first + c] - std::exp(y[first + c]) * sum;
      const long double of_plain = (dy[first + c] - sum) * y[first + c];
      const bool hidden = log && masked && y[first + c] == -kInfinity;
      dx[first + c] = hidden ? 0 : static_cast<double>(scale * (log ? of_log : of_plain));
    }
  }
  return dx;
}

// An error of some roundings of the accumulation type, relative to the largest number in sight, and
// of one rounding of the storage type, relative to the number itself.
inline double tolerance(DType dtype, double expected, double largest) {
  const DType accumulate = dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  constexpr double kRoundings = 24;
  const double smallest = power_of_two(format_of(dtype).min_exponent);
  return 1.01 * unit_roundoff(dtype) * std::abs(expected) +
         kRoundings * unit_roundoff(accumulate) * largest + smallest * unit_roundoff(dtype);
}

// `largest` of 0 stands for the largest finite |expected|. NaN equals NaN, infinities their like.
inline ::testing::AssertionResult close(DType dtype, const Values& got, const Values& expected,
                                        double largest = 0) {
  if (got.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  double scale = largest;
  if (largest == 0) {
    for (double e : expected) scale = std::isfinite(e) ? std::max(scale, std::abs(e)) : scale;
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double wanted = rounded_to(dtype, expected[i]);
    const bool same = got[i] == wanted || (std::isnan(got[i]) && std::isnan(wanted));
    if (same || std::abs(got[i] - expected[i]) <= tolerance(dtype, expected[i], scale)) continue;
    return ::testing::AssertionFailure()
           << name_of(dtype) << " element " << i << " of " << got.size() << " is " << got[i]
           << ", expected " << expected[i] << " within " << tolerance(dtype, expected[i], scale);
  }
  return ::testing::AssertionSuccess();
}

}  // namespace transformer_kernels::testing
