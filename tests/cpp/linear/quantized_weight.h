// SPDX-License-Identifier: MIT
// Weights of 8 and 4 bits a number, and the error of products with them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "linear/product_reference.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {

inline constexpr std::int64_t kGap = 6;  // bytes between rows of numbers

// Every number there is, with scales of either sign, and what they stand for.
class QuantizedWeight {
 public:
  QuantizedWeight(Backend& backend, int bits, std::int64_t rows, std::int64_t cols,
                  std::int64_t group, DType scale_dtype, std::int64_t gap = kGap,
                  Layout of_scales = {1, 2})
      : scale_values_(random_normal(rows * (cols / group), scale_dtype)),
        scales_(backend, scale_dtype, rows, cols / group, scale_values_, of_scales),
        values(rows * cols) {
    const std::int64_t row_bytes = cols * bits / 8 + gap;
    std::vector<std::uint8_t> bytes(rows * row_bytes, 0x5a);
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const std::int64_t row = i / cols, col = i % cols;
      const int number = static_cast<int>(i * 37 % (1 << bits)) - (1 << (bits - 1));
      std::uint8_t& byte = bytes[row * row_bytes + col * bits / 8];
      if (bits == 8) {
        byte = static_cast<std::uint8_t>(number);
      } else {
        const int nibble = number & 15;
        byte = static_cast<std::uint8_t>(col % 2 == 0 ? nibble : (byte & 15) | nibble << 4);
      }
      values[i] = number * scale_values_[row * (cols / group) + col / group];
    }
    memory_ = std::make_unique<DeviceArray<std::uint8_t>>(backend, bytes.data(), bytes.size());
    packed = memory_->vector(bits == 8 ? DType::kInt8 : DType::kUInt8);
    packed.rank = 2;
    packed.sizes[0] = rows;
    packed.sizes[1] = cols * bits / 8;
    packed.strides[0] = row_bytes;
    packed.strides[1] = 1;
  }

  TensorView scales() const { return scales_.view(); }

 private:
  std::unique_ptr<DeviceArray<std::uint8_t>> memory_;
  Values scale_values_;
  TestTensor scales_;

 public:
  Values values;
  TensorView packed;
};

// Besides the error that expect_close() allows, the numbers of the weight are rounded, to float32
// and, where they become a plain matrix, to dtype.
inline void expect_near(DType dtype, const Values& got, const Sums& expected, bool is_plain) {
  const double of_weight = unit_roundoff(DType::kFloat32) + (is_plain ? unit_roundoff(dtype) : 0.0);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = 1.01 * unit_roundoff(dtype) * std::abs(expected.sum[i]) +
                         (of_weight + 20 * unit_roundoff(DType::kFloat32)) * expected.size[i];
    ASSERT_NEAR(got[i], expected.sum[i], error) << "element " << i;
  }
}

}  // namespace transformer_kernels::testing
