// SPDX-License-Identifier: MIT
#include "fpga/quantize.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/dispatch.h"
#include "core/math/convert.h"

namespace transformer_kernels::fpga {

constexpr double kLargestInt8 = 127;

void widen(DType dtype, const void* row, std::span<float> out) {
  dispatch_float(dtype, [&]<class T>() {
    const T* const in = static_cast<const T*>(row);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>(transformer_kernels::widen(in[i]));
    }
  });
}

void narrow(DType dtype, std::span<const float> in, void* row) {
  dispatch_float(dtype, [&]<class T>() {
    T* const out = static_cast<T*>(row);
    for (std::size_t i = 0; i < in.size(); ++i) {
      transformer_kernels::narrow(static_cast<accumulate_t<T>>(in[i]), out[i]);
    }
  });
}

void check_finite(const char* op, const char* name, std::span<const float> values) {
  const auto is_finite = [](float value) { return std::isfinite(value); };
  check_value(std::all_of(values.begin(), values.end(), is_finite), op, ": ", name,
              " has elements that are NaN or infinite, expected finite ones (they become int8)");
}

double int8_scale(std::span<const float> values) {
  float largest = 0;
  for (float value : values) largest = std::max(largest, std::abs(value));
  return largest / kLargestInt8;
}

void quantize(std::span<const float> values, double scale, std::int8_t* out) {
  const double factor = scale > 0 ? 1 / scale : 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double rounded = std::nearbyint(values[i] * factor);
    out[i] = static_cast<std::int8_t>(std::clamp(rounded, -kLargestInt8, kLargestInt8));
  }
}

Int8Rows quantize_rows(std::span<const float> values, std::int64_t cols, std::int64_t width) {
  Int8Rows out;
  out.rows = static_cast<std::int64_t>(values.size()) / cols;
  out.width = width;
  out.scale = int8_scale(values);
  out.data.resize(static_cast<std::size_t>(out.rows * width));
  for (std::int64_t row = 0; row < out.rows; ++row) {
    quantize(values.subspan(row * cols, cols), out.scale, out.data.data() + row * width);
  }
  return out;
}

double largest_square(const Int8Rows& rows) {
  std::int64_t largest = 0;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    std::int64_t square = 0;
    for (std::int8_t value : rows.row(row)) square += std::int64_t{value} * value;
    largest = std::max(largest, square);
  }
  return static_cast<double>(largest);
}

std::vector<float> center_columns(std::span<float> values, std::int64_t cols) {
  const auto rows = static_cast<std::int64_t>(values.size()) / cols;
  std::vector<float> means(static_cast<std::size_t>(cols));
  if (rows == 0) return means;
  for (std::int64_t col = 0; col < cols; ++col) {
    double sum = 0;
    for (std::int64_t row = 0; row < rows; ++row) sum += values[row * cols + col];
    means[col] = static_cast<float>(sum / static_cast<double>(rows));
    for (std::int64_t row = 0; row < rows; ++row) values[row * cols + col] -= means[col];
  }
  return means;
}

}  // namespace transformer_kernels::fpga
