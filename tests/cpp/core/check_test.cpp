// SPDX-License-Identifier: MIT
#include "core/check.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/dispatch.h"
#include "core/rows.h"

namespace transformer_kernels {
namespace {

template <class Call>
std::pair<Error::Kind, std::string> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  return {Error::Kind::kRuntime, "no error"};
}

void expect_error(Error::Kind kind, const std::string& message, auto&& call) {
  EXPECT_EQ(error_of(call), std::pair(kind, message));
}

float storage[64];

TensorView tensor(std::initializer_list<std::int64_t> shape) {
  return TensorView::contiguous(storage, DType::kFloat32, {}, shape);
}

constexpr auto kValue = Error::Kind::kValue;
constexpr auto kType = Error::Kind::kType;
const ArgumentChecker kCheck("op", Device{});

TEST(Check, shapes_read_like_python) {
  EXPECT_EQ(shape_of(tensor({})), "()");
  EXPECT_EQ(shape_of(tensor({7})), "(7,)");
  EXPECT_EQ(shape_of(tensor({2, 3, 4})), "(2, 3, 4)");
}

TEST(Check, present_and_on_the_device) {
  kCheck.floating("x", tensor({2}));
  expect_error(kValue, "op: x is missing", [] { kCheck.floating("x", {}); });
  TensorView far = tensor({2});
  far.device = {DeviceType::kCuda, 3};
  expect_error(kValue, "op: x is on cuda:3, expected cpu:0", [&] { kCheck.floating("x", far); });
  TensorView null = tensor({2});
  null.data = nullptr;
  expect_error(kValue, "op: x is a null pointer", [&] { kCheck.floating("x", null); });
  null.sizes[0] = 0;
  kCheck.floating("x", null);
}

TEST(Check, dtypes) {
  TensorView flags = tensor({2});
  flags.dtype = DType::kBool;
  expect_error(kType, "op: x is bool, expected a floating-point dtype",
               [&] { kCheck.floating("x", flags); });
  expect_error(kType, "op: y is float32, expected float16 (as x)",
               [] { kCheck.typed("y", tensor({2}), DType::kFloat16, "as x"); });
  expect_error(kType, "dtype bool is not a floating point",
               [] { dispatch_float(DType::kBool, []<class T>() {}); });
  EXPECT_EQ(dispatch_float(DType::kBFloat16, []<class T>() { return sizeof(T); }), 2u);
}

TEST(Check, indices) {
  TensorView labels = tensor({2});
  expect_error(kType, "op: labels is float32, expected int32 or int64",
               [&] { kCheck.indices("labels", labels); });
  expect_error(kValue, "op: labels is missing", [] { kCheck.indices("labels", {}); });
  for (const DType dtype : {DType::kInt32, DType::kInt64}) {
    labels.dtype = dtype;
    kCheck.indices("labels", labels);
  }
  labels.dtype = DType::kInt8;
  expect_error(kType, "op: labels is int8, expected int32 or int64",
               [&] { kCheck.indices("labels", labels); });
}

TEST(Check, ranks_and_shapes) {
  expect_error(kValue, "op: x has 0 dimensions, expected at least 1",
               [] { kCheck.floating("x", tensor({})); });
  kCheck.same_shape("y", tensor({2, 3}), "x", tensor({2, 3}));
  expect_error(kValue, "op: y has shape (2, 3), expected (3, 2) (the shape of x)", [] {
    kCheck.same_shape("y", tensor({2, 3}), "x", tensor({3, 2}));
  });
  expect_error(kValue, "op: y has shape (2,), expected (2, 1) (the shape of x)", [] {
    kCheck.same_shape("y", tensor({2}), "x", tensor({2, 1}));
  });
}

TEST(Check, packed_vectors) {
  kCheck.packed("w", tensor({2, 3}), 6, "columns");
  expect_error(kValue, "op: w has 5 elements, expected 6 (columns)",
               [] { kCheck.packed("w", tensor({5}), 6, "columns"); });
  TensorView gaps = tensor({6});
  gaps.strides[0] = 2;
  expect_error(kValue, "op: w has gaps, expected contiguous memory",
               [&] { kCheck.packed("w", gaps, 6, "columns"); });
  TensorView single = tensor({1});
  single.strides[0] = 9;
  kCheck.packed("w", single, 1, "columns");
}

Quantized matrix(int bits, std::int64_t rows, std::int64_t cols, int group) {
  const DType dtype = bits == 4 ? DType::kUInt8 : DType::kInt8;
  return {.values = TensorView::contiguous(storage, dtype, {}, {rows, cols * bits / 8}),
          .scales = tensor({rows, cols / group}),
          .group = group,
          .bits = bits};
}

void expect_refused(Error::Kind kind, const std::string& message, Quantized w, auto&& spoil) {
  spoil(w);
  expect_error(kind, message, [&] { kCheck.quantized("w", w); });
}

TEST(Check, quantised_matrices) {
  for (const int bits : {4, 8}) {
    for (const int group : {2, 8}) kCheck.quantized("w", matrix(bits, 3, 8, group));
    EXPECT_EQ(matrix(bits, 3, 8, 2).cols(), 8);
  }
  Quantized stored = matrix(8, 3, 8, 8);
  for (const DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    stored.values.dtype = dtype;
    kCheck.quantized("w", stored);
  }
}

TEST(Check, quantised_matrices_that_are_none) {
  const Quantized bytes = matrix(8, 3, 8, 4);
  const Quantized nibbles = matrix(4, 3, 8, 4);
  expect_refused(kValue, "op: w has 3 bits, expected 4 or 8", bytes, [](auto& w) { w.bits = 3; });
  expect_refused(kValue, "op: w.scales is missing", bytes, [](auto& w) { w.scales = {}; });
  expect_refused(kValue, "op: w.values has 1 dimensions, expected 2", bytes,
                 [](auto& w) { w.values = tensor({8}); });
  expect_refused(kValue, "op: w.values has a last stride of 3, expected 1", bytes,
                 [](auto& w) { w.values.strides[1] = 3; });
  expect_refused(kType, "op: w.values is uint8, expected int8, float8_e4m3fn or float8_e5m2", bytes,
                 [](auto& w) { w.values.dtype = DType::kUInt8; });
  expect_refused(kType, "op: w.values is int8, expected uint8 (two numbers a byte)", nibbles,
                 [](auto& w) { w.values.dtype = DType::kInt8; });
  expect_refused(kType, "op: w.scales is float64, expected float32, float16 or bfloat16", nibbles,
                 [](auto& w) { w.scales.dtype = DType::kFloat64; });
  expect_refused(kValue, "op: w has a group of 3, expected a divisor of 8 (its columns)", nibbles,
                 [](auto& w) { w.group = 3; });
  expect_refused(kValue,
                 "op: w.scales has shape (3, 2), expected (3, 1) (rows, groups of 8 columns)",
                 nibbles, [](auto& w) { w.group = 8; });
}

TensorView strided(std::initializer_list<std::int64_t> sizes,
                   std::initializer_list<std::int64_t> strides) {
  TensorView view = tensor(sizes);
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

TEST(Rows, leading_dimensions_collapse) {
  EXPECT_EQ(row_stride(tensor({2, 3, 4})), 4);
  EXPECT_EQ(row_stride(tensor({4})), 4);
  EXPECT_EQ(row_stride(strided({2, 3, 4}, {30, 10, 1})), 10);
  EXPECT_EQ(row_stride(strided({2, 3, 4}, {31, 10, 1})), -1);
  EXPECT_EQ(row_stride(strided({2, 3, 4}, {4, 8, 1})), -1);
  EXPECT_EQ(row_stride(strided({3, 4}, {4, 2})), -1);
  EXPECT_EQ(row_stride(strided({5, 4}, {0, 1})), 0);
}

TEST(Rows, dimensions_of_one_have_no_say) {
  EXPECT_EQ(row_stride(strided({1, 3, 1, 4}, {999, 10, 777, 1})), 10);
  EXPECT_EQ(row_stride(strided({3, 1}, {10, 55})), 10);
  EXPECT_EQ(row_stride(strided({1, 4}, {77, 1})), 4);
}

TEST(Rows, counts) {
  EXPECT_EQ(rows_and_cols(tensor({2, 3, 4})).rows, 6);
  EXPECT_EQ(rows_and_cols(tensor({2, 0, 4})).rows, 0);
  EXPECT_EQ(rows_and_cols(tensor({5})).rows, 1);
  EXPECT_EQ(rows_and_cols(tensor({5, 0})).cols, 0);
}

TEST(Messages, have_numbers_of_every_kind) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(concat("a", std::string("b"), 'c', -3, std::size_t{4}, true), "abc-341");
  EXPECT_EQ(concat(kMost, " ", ~std::uint64_t{0}), "9223372036854775807 18446744073709551615");
  EXPECT_EQ(concat(1.5, " ", 0.1f, " ", 1e-7, " ", 1234567.0), "1.5 0.1 1e-07 1.23457e+06");
  EXPECT_EQ(concat(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Rows, outputs_may_not_overlap_themselves) {
  EXPECT_EQ(checked_output_stride("op", "y", strided({3, 4}, {9, 1})), 9);
  EXPECT_EQ(checked_output_stride("op", "y", strided({1, 4}, {0, 1})), 4);
  expect_error(kValue, "op: y has overlapping rows (row stride 2), expected at least 4", [] {
    checked_output_stride("op", "y", strided({3, 4}, {2, 1}));
  });
  expect_error(kValue,
               "op: y has uneven strides, expected a last stride of 1 and one common row stride",
               [] {
                 checked_output_stride("op", "y", strided({3, 4}, {12, 3}));
               });
}

}  // namespace
}  // namespace transformer_kernels
