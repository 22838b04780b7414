// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/quantize_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "error_of.h"
#include "numbers.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

constexpr DType kWeights[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr DType kScales[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr std::int64_t kGap = 2;  // bytes between rows of numbers, which nobody may write

// A call on a random weight, and memory for its results.
struct Call {
  Call(int bits, std::int64_t rows, std::int64_t cols, std::int64_t groups, DType weight_dtype,
       DType scales_dtype, Values weight_values)
      : bits(bits),
        rows(rows),
        cols(cols),
        values(std::move(weight_values)),
        weight(*cpu_backend(), weight_dtype, rows, cols, values, {1, 3}),
        scales(*cpu_backend(), scales_dtype, rows, groups, Layout{1, 2}),
        packed(rows * row_bytes(), 0x5a) {}

  std::int64_t row_bytes() const { return cols * bits / 8 + kGap; }
  QuantizeWeight arguments() {
    TensorView numbers = TensorView::contiguous(
        packed.data(), bits == 8 ? DType::kInt8 : DType::kUInt8, {}, {rows, cols * bits / 8});
    numbers.strides[0] = row_bytes();
    return {.weight = weight.view(), .packed = numbers, .scales = scales.view()};
  }
  int number(std::int64_t row, std::int64_t col) const {
    const std::uint8_t byte = packed[row * row_bytes() + col * bits / 8];
    if (bits == 8) return static_cast<std::int8_t>(byte);
    const int nibble = col % 2 == 0 ? byte & 15 : byte >> 4;
    return nibble < 8 ? nibble : nibble - 16;
  }
  bool gaps_intact() const {
    bool intact = true;
    for (std::int64_t i = 0; i < std::ssize(packed); ++i) {
      if (i % row_bytes() >= cols * bits / 8) intact &= packed[i] == 0x5a;
    }
    return intact;
  }

  int bits;
  std::int64_t rows, cols;
  Values values;
  TestTensor weight;
  TestTensor scales;
  std::vector<std::uint8_t> packed;
};

TEST(QuantizeWeight, numbers_are_off_by_at_most_half_a_scale) {
  for (const int bits : {8, 4}) {
    for (const DType weight_dtype : kWeights) {
      for (const DType scales_dtype : kScales) {
        constexpr std::int64_t kRows = 5, kCols = 66, kGroups = 3, kGroup = kCols / kGroups;
        Values values = random_normal(kRows * kCols, weight_dtype);
        std::fill_n(values.begin() + kGroup, kGroup, 0.0);  // a group of zeros
        Call call(bits, kRows, kCols, kGroups, weight_dtype, scales_dtype, values);
        quantize_weight({}, call.arguments());
        const Values scales = call.scales.values();
        const double most = bits == 8 ? 127 : 7;
        for (std::int64_t row = 0; row < kRows; ++row) {
          for (std::int64_t g = 0; g < kGroups; ++g) {
            double largest = 0;
            const double scale = scales[row * kGroups + g];
            for (std::int64_t k = g * kGroup; k < (g + 1) * kGroup; ++k) {
              const double value = values[row * kCols + k];
              largest = std::max(largest, std::abs(value));
              ASSERT_NEAR(call.number(row, k) * scale, value, 0.5001 * scale);
            }
            ASSERT_NEAR(scale, largest / most, 2 * unit_roundoff(scales_dtype) * largest / most);
          }
        }
        EXPECT_TRUE(call.scales.surroundings_intact() && call.gaps_intact());
      }
    }
  }
}

TEST(QuantizeWeight, halves_become_even_and_scales_are_not_rounded_down_too_far) {
  // With a scale of 1: 0.5 and 1.5 lie half way, and 127 is the largest.
  Call halves(8, 1, 4, 1, DType::kFloat32, DType::kFloat32, {127, 0.5, 1.5, -2.5});
  quantize_weight({}, halves.arguments());
  EXPECT_EQ(halves.scales.values(), Values{1});
  EXPECT_EQ(halves.number(0, 1), 0);
  EXPECT_EQ(halves.number(0, 2), 2);
  EXPECT_EQ(halves.number(0, 3), -2);
  // The multiple of 2^-24 that is nearest to 2.45 is 2, with which 127 numbers would not suffice.
  Call rounded(8, 1, 2, 1, DType::kFloat64, DType::kFloat16, {127 * 2.45 * 0x1p-24, 0});
  quantize_weight({}, rounded.arguments());
  EXPECT_EQ(rounded.scales.values(), Values{3 * 0x1p-24});
  EXPECT_EQ(rounded.number(0, 0), 104);
}

TEST(QuantizeWeight, empty_weights_have_no_numbers) {
  Call none(8, 0, 4, 2, DType::kFloat32, DType::kFloat32, {});
  quantize_weight({}, none.arguments());
  Call flat(4, 3, 0, 0, DType::kFloat32, DType::kFloat32, {});
  quantize_weight({}, flat.arguments());
  EXPECT_TRUE(flat.gaps_intact());
}

template <class Spoil>
void expect_error(Values values, DType scales, Spoil&& spoil, const std::string& expected) {
  Call call(4, 2, 4, 2, DType::kFloat32, scales, std::move(values));
  QuantizeWeight a = call.arguments();
  spoil(a);
  EXPECT_EQ(error_of([&] { quantize_weight({}, a); }), "quantize_weight: " + expected);
  EXPECT_TRUE(call.scales.untouched() &&
              std::ranges::count(call.packed, 0x5a) == std::ssize(call.packed));
}

TEST(QuantizeWeight, bad_arguments_are_named) {
  const Values good = random_normal(8, DType::kFloat32);
  const auto with = [&](auto&& spoil, const char* expected) {
    expect_error(good, DType::kFloat32, spoil, expected);
  };
  with([](auto& a) { a.weight = {}; }, "weight is missing");
  with([](auto& a) { a.weight.rank = 1; }, "weight has 1 dimensions, expected 2");
  with([](auto& a) { a.packed.dtype = DType::kInt32; },
       "packed is int32, expected int8 or uint8 (two numbers a byte)");
  with([](auto& a) { a.packed.dtype = DType::kInt8; }, "packed has shape (2, 2), expected (2, 4)");
  with([](auto& a) { a.weight.sizes[1] = 3; },
       "weight has 3 columns, expected an even number (4 bits a number)");
  with([](auto& a) { a.scales.dtype = DType::kFloat64; },
       "scales is float64, expected float32, float16 or bfloat16");
  with([](auto& a) { a.scales.sizes[1] = 3; },
       "scales has 3 groups a row, expected a divisor of 4 (the columns of weight)");
  with([](auto& a) { a.scales.data = a.weight.data; },
       "scales overlaps weight, expected memory of its own");
}

TEST(QuantizeWeight, groups_without_a_scale_are_refused) {
  const auto nothing = [](auto&) {};
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const char* const no_scale =
      "weight has a group whose scale is not finite, expected numbers whose scales float16 holds";
  expect_error({1, 1, 1, 1, 1, 1, 1, kNan}, DType::kFloat16, nothing, no_scale);
  expect_error({1, 1, 1, 1, 1, 1e6, 1, 1}, DType::kFloat16, nothing, no_scale);
  expect_error({1, 1, 1, 1, 1, 1, 1e-7, 0}, DType::kFloat16, nothing,
               "weight has a group whose scale is too small, expected numbers whose scales float16"
               " holds");
}

}  // namespace
}  // namespace transformer_kernels::testing
