// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/quantized_linear.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend_test.h"
#include "error_of.h"
#include "linear/product_reference.h"
#include "linear/quantized_weight.h"
#include "parallel_hooks.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

class QuantizedLinearOp : public BackendTest {
 protected:
  // Checks random rows in this layout; `is_plain` where the weight is rounded to dtype.
  static void check_forward(std::int64_t rows, std::int64_t terms, std::int64_t cols,
                            const QuantizedWeight& weight, Layout of_x, bool is_plain);
};

INSTANTIATE_TEST_SUITE_P(on, QuantizedLinearOp, all_backends_and_dtypes(), name_of_backend_test);

void QuantizedLinearOp::check_forward(std::int64_t rows, std::int64_t terms, std::int64_t cols,
                                      const QuantizedWeight& weight, Layout of_x, bool is_plain) {
  const Values x_values = random_normal(rows * terms, dtype());
  const Values bias_values = random_normal(cols, dtype());
  const TestTensor x(backend(), dtype(), rows, terms, x_values, of_x);
  const TestTensor bias(backend(), dtype(), 1, cols, bias_values);
  TestTensor y(backend(), dtype(), rows, cols, Layout{1, 3});
  quantized_linear_forward(backend().context(), {.x = x.view(),
                                                 .packed = weight.packed,
                                                 .scales = weight.scales(),
                                                 .bias = bias.vector(),
                                                 .y = y.view()});
  expect_near(
      dtype(), y.values(),
      product(rows, cols, terms, x_values, {terms, 1}, weight.values, {terms, 1}, bias_values),
      is_plain);
  EXPECT_TRUE(y.surroundings_intact());
}

struct Case {
  std::int64_t rows, terms, cols, group;
};
// Few rows in whole steps and in partial ones, more rows, several blocks of columns, no terms.
constexpr Case kCases[] = {{1, 256, 70, 64}, {3, 192, 9, 192},  {16, 64, 130, 32}, {9, 128, 3, 64},
                           {2, 70, 5, 7},    {40, 66, 21, 66},  {4, 6, 1, 2},      {1, 0, 3, 1},
                           {40, 96, 85, 32}, {33, 64, 805, 32}, {20, 1632, 5, 96}};

TEST_P(QuantizedLinearOp, matches_the_reference) {
  constexpr DType kScales[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  int number = 0;
  for (const auto& [rows, terms, cols, group] : kCases) {
    for (const int bits : {8, 4}) {
      SCOPED_TRACE(std::to_string(rows) + 'x' + std::to_string(terms) + 'x' + std::to_string(cols) +
                   " int" + std::to_string(bits));
      const QuantizedWeight weight(backend(), bits, cols, terms, group, kScales[number++ % 3]);
      const bool is_plain = rows > 16 || group % 32 != 0;
      check_forward(rows, terms, cols, weight, {1, 3}, is_plain || is_on_cuda(backend()));

      const Values dy_values = random_normal(rows * cols, dtype());
      const TestTensor dy(backend(), dtype(), rows, cols, dy_values, {1, 3});
      TestTensor dx(backend(), dtype(), rows, terms, Layout{1, 3});
      TestTensor dbias(backend(), dtype(), 1, cols);
      quantized_linear_backward(backend().context(), {.dy = dy.view(),
                                                      .packed = weight.packed,
                                                      .scales = weight.scales(),
                                                      .dx = dx.view(),
                                                      .dbias = dbias.vector()});
      expect_near(dtype(), dx.values(),
                  product(rows, terms, cols, dy_values, {cols, 1}, weight.values, {1, terms}),
                  true);
      expect_close(dtype(), dbias.values(),
                   product(1, cols, rows, Values(rows, 1), {0, 1}, dy_values, {1, cols}));
      EXPECT_TRUE(dx.surroundings_intact());
      EXPECT_TRUE(dbias.surroundings_intact());
    }
  }
}

// Whole chunks, few columns and many, groups of one load and of several; every tile of rows.
TEST_P(QuantizedLinearOp, few_rows_multiply_numbers_as_they_are) {
  constexpr Case kFew[] = {{1, 256, 40, 128}, {16, 512, 24, 256}, {9, 384, 3208, 384},
                           {3, 192, 72, 64},  {8, 128, 3203, 64}, {2, 1152, 16, 128}};
  constexpr DType kScales[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  int number = 0;
  for (const auto& [rows, terms, cols, group] : kFew) {
    for (const int bits : {8, 4}) {
      SCOPED_TRACE(std::to_string(rows) + 'x' + std::to_string(terms) + 'x' + std::to_string(cols) +
                   " int" + std::to_string(bits));
      const QuantizedWeight weight(backend(), bits, cols, terms, group, kScales[number++ % 3], 0);
      check_forward(rows, terms, cols, weight, {}, is_on_cuda(backend()) && size_of(dtype()) > 2);
    }
  }
}

TEST_P(QuantizedLinearOp, any_threads_give_the_same_bits) {
  if (is_on_cuda(backend())) GTEST_SKIP() << "threads of the CPU";
  for (const int bits : {8, 4}) {
    const QuantizedWeight weight(backend(), bits, 400, 256, 128, DType::kFloat32);
    const TestTensor x(backend(), dtype(), 3, 256, random_normal(3 * 256, dtype()));
    std::vector<std::vector<std::uint8_t>> seen;
    for (const Context& context : contexts_with_different_threads(backend())) {
      TestTensor y(backend(), dtype(), 3, 400);
      quantized_linear_forward(
          context,
          {.x = x.view(), .packed = weight.packed, .scales = weight.scales(), .y = y.view()});
      seen.push_back(y.bytes());
      EXPECT_EQ(seen.back(), seen.front());
    }
  }
}

TEST_P(QuantizedLinearOp, says_what_does_not_fit) {
  const QuantizedWeight weight(backend(), 4, 3, 8, 4, DType::kFloat32);
  const TestTensor x(backend(), dtype(), 4, 8, Values(32, 1));
  const TestTensor wide(backend(), dtype(), 4, 9, Values(36, 1));
  const TestTensor three(backend(), DType::kFloat32, 3, 3, Values(9, 1));
  TestTensor y(backend(), dtype(), 4, 3);
  const QuantizedLinearForward good{
      .x = x.view(), .packed = weight.packed, .scales = weight.scales(), .y = y.view()};
  const auto error = [&](auto&& spoil) {
    QuantizedLinearForward arguments = good;
    spoil(arguments);
    return error_of([&] { quantized_linear_forward(backend().context(), arguments); });
  };
  EXPECT_EQ(error([&](auto& a) { a.packed = x.view(); }),
            std::string("quantized_linear: packed is ") + name_of(dtype()) +
                ", expected int8 or uint8 (two numbers a byte)");
  EXPECT_EQ(error([&](auto& a) { a.x = wide.view(); }),
            "quantized_linear: packed has 8 numbers a row, expected 9 (the last dimension of x)");
  EXPECT_EQ(error([&](auto& a) { a.scales = three.view(); }),
            "quantized_linear: scales has shape (3, 3), expected (3, a divisor of 8) (the rows of"
            " packed, the groups of a row)");
  EXPECT_EQ(error([&](auto& a) { a.scales.dtype = DType::kFloat64; }),
            "quantized_linear: scales is float64, expected float32, float16 or bfloat16");
  EXPECT_EQ(error([&](auto& a) { a.y = {}; }), "quantized_linear: y is missing");
  EXPECT_EQ(error([&](auto& a) { a.y = x.view(); }).substr(0, 35),
            "quantized_linear: y has shape (4, 8");
  EXPECT_TRUE(y.untouched());
}

}  // namespace
}  // namespace transformer_kernels::testing
