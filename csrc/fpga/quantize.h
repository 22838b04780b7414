// SPDX-License-Identifier: MIT
// Conversion of tensors to float, and of float to the integers that an array multiplies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels::fpga {

// `out.size()` elements from `row` on, and the way back, rounded to nearest even.
void widen(DType dtype, const void* row, std::span<float> out);
void narrow(DType dtype, std::span<const float> in, void* row);

// Rows of int8, each filled up with zeros to `width`; a value is `scale` times its number.
struct Int8Rows {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::vector<std::int8_t> data;
  double scale = 1;

  std::span<const std::int8_t> row(std::int64_t index) const {
    return {data.data() + index * width, static_cast<std::size_t>(width)};
  }
};

// Throws Error, which calls them `name`, where a number is not finite.
void check_finite(const char* op, const char* name, std::span<const float> values);

// The scale by which the largest magnitude becomes 127.
double int8_scale(std::span<const float> values);

// values[i] / scale, to the nearest of -127 to 127. A scale of 0 belongs to zeros alone.
void quantize(std::span<const float> values, double scale, std::int8_t* out);

// `values` are rows of `cols`, with one scale.
Int8Rows quantize_rows(std::span<const float> values, std::int64_t cols, std::int64_t width);

// The largest sum of squares of a row, in units of int8.
double largest_square(const Int8Rows& rows);

// Takes the mean of each column off, and returns it.
std::vector<float> center_columns(std::span<float> values, std::int64_t cols);

}  // namespace transformer_kernels::fpga
