// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

#include "backend_test.h"
#include "error_of.h"
#include "linear/product_reference.h"
#include "parallel_hooks.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

class LinearOp : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(on, LinearOp, all_backends_and_dtypes(), name_of_backend_test);

struct Sizes {
  std::int64_t rows, terms, cols;
  Layout layout;
};
// One tile; partial blocks and parts; no terms. For Hopper's engine: a partial tile, columns that
// TMA cannot store, split terms. Few rows, with few columns and with many.
constexpr Sizes kSizes[] = {{1, 1, 1, {}},         {7, 5, 3, {1, 3}},  {100, 260, 195, {}},
                            {33, 513, 70, {0, 8}}, {17, 40, 1, {}},    {4, 0, 6, {}},
                            {136, 72, 200, {}},    {40, 64, 77, {}},   {2056, 264, 72, {}},
                            {1, 72, 40, {}},       {16, 1096, 52, {}}, {9, 64, 3204, {}}};

TEST_P(LinearOp, matches_the_reference) {
  for (const auto& [rows, terms, cols, layout] : kSizes) {
    SCOPED_TRACE(std::to_string(rows) + 'x' + std::to_string(terms) + 'x' + std::to_string(cols));
    const Values x_values = random_normal(rows * terms, dtype());
    const Values weight_values = random_normal(cols * terms, dtype());
    const Values bias_values = random_normal(cols, dtype());
    const Values dy_values = random_normal(rows * cols, dtype());
    const TestTensor x(backend(), dtype(), rows, terms, x_values, layout);
    const TestTensor weight(backend(), dtype(), cols, terms, weight_values, layout);
    const TestTensor bias(backend(), dtype(), 1, cols, bias_values);
    const TestTensor dy(backend(), dtype(), rows, cols, dy_values, layout);
    TestTensor y(backend(), dtype(), rows, cols, layout);
    linear_forward(backend().context(),
                   {.x = x.view(), .weight = weight.view(), .bias = bias.vector(), .y = y.view()});
    expect_close(
        dtype(), y.values(),
        product(rows, cols, terms, x_values, {terms, 1}, weight_values, {terms, 1}, bias_values));
    EXPECT_TRUE(y.surroundings_intact());

    TestTensor dx(backend(), dtype(), rows, terms, layout);
    TestTensor dweight(backend(), dtype(), cols, terms, layout);
    TestTensor dbias(backend(), dtype(), 1, cols);
    linear_backward(backend().context(), {.dy = dy.view(),
                                          .x = x.view(),
                                          .weight = weight.view(),
                                          .dx = dx.view(),
                                          .dweight = dweight.view(),
                                          .dbias = dbias.vector()});
    expect_close(dtype(), dx.values(),
                 product(rows, terms, cols, dy_values, {cols, 1}, weight_values, {1, terms}));
    expect_close(dtype(), dweight.values(),
                 product(cols, terms, rows, dy_values, {1, cols}, x_values, {1, terms}));
    expect_close(dtype(), dbias.values(),
                 product(1, cols, rows, Values(rows, 1), {0, 1}, dy_values, {1, cols}));
    EXPECT_TRUE(dx.surroundings_intact());
    EXPECT_TRUE(dweight.surroundings_intact());
    EXPECT_TRUE(dbias.surroundings_intact());
  }
}

TEST_P(LinearOp, takes_a_weight_kept_by_columns) {
  constexpr std::int64_t kRows = 50, kTerms = 60, kCols = 70;
  const Values values = random_normal(kCols * kTerms, dtype());
  Values by_columns(values.size());
  for (std::int64_t c = 0; c < kCols; ++c) {
    for (std::int64_t k = 0; k < kTerms; ++k) by_columns[k * kCols + c] = values[c * kTerms + k];
  }
  const Values x_values = random_normal(kRows * kTerms, dtype());
  const Values dy_values = random_normal(kRows * kCols, dtype());
  const TestTensor x(backend(), dtype(), kRows, kTerms, x_values);
  const TestTensor dy(backend(), dtype(), kRows, kCols, dy_values);
  const TestTensor weight(backend(), dtype(), kCols, kTerms, values);
  const TestTensor other(backend(), dtype(), kTerms, kCols, by_columns);
  const auto run = [&](const TensorView& w, TensorView dweight) {
    TestTensor y(backend(), dtype(), kRows, kCols);
    linear_forward(backend().context(), {.x = x.view(), .weight = w, .y = y.view()});
    linear_backward(backend().context(),
                    {.dy = dy.view(), .x = x.view(), .weight = w, .dweight = dweight});
    return y.values();
  };
  TestTensor dweight(backend(), dtype(), kCols, kTerms);
  TestTensor dother(backend(), dtype(), kTerms, kCols);
  const Values y = run(weight.view(), dweight.view());
  const Values y_of_other = run(transposed(other.view()), transposed(dother.view()));
  const Values a = dweight.values(), b = dother.values();
  Values b_by_rows(b.size());
  for (std::int64_t c = 0; c < kCols; ++c) {
    for (std::int64_t k = 0; k < kTerms; ++k) b_by_rows[c * kTerms + k] = b[k * kCols + c];
  }
  // cuBLASLt may sum in another way in another order.
  if (!is_on_cuda(backend())) {
    EXPECT_EQ(y, y_of_other);
    EXPECT_EQ(a, b_by_rows);
  }
  const Sums sums = product(kRows, kCols, kTerms, x_values, {kTerms, 1}, values, {kTerms, 1});
  const Sums gradients =
      product(kCols, kTerms, kRows, dy_values, {1, kCols}, x_values, {1, kTerms});
  expect_close(dtype(), y, sums);
  expect_close(dtype(), y_of_other, sums);
  expect_close(dtype(), a, gradients);
  expect_close(dtype(), b_by_rows, gradients);
}

TEST_P(LinearOp, activates_the_rounded_sum) {
  constexpr std::int64_t kRows = 100, kTerms = 30, kCols = 200;
  const TestTensor x(backend(), dtype(), kRows, kTerms, random_normal(kRows * kTerms, dtype()));
  const TestTensor weight(backend(), dtype(), kCols, kTerms,
                          random_normal(kCols * kTerms, dtype()));
  const TestTensor dy(backend(), dtype(), kRows, kCols, random_normal(kRows * kCols, dtype()));
  for (const Pointwise op : {Pointwise::kGelu, Pointwise::kQuickGelu}) {
    TestTensor z(backend(), dtype(), kRows, kCols), y(backend(), dtype(), kRows, kCols);
    TestTensor alone(backend(), dtype(), kRows, kCols), inference(backend(), dtype(), kRows, kCols);
    LinearForward forward{.x = x.view(), .weight = weight.view(), .activation = op, .y = y.view()};
    forward.z = z.view();
    linear_forward(backend().context(), forward);
    pointwise_forward(backend().context(), {.op = op, .x = z.view(), .y = alone.view()});
    EXPECT_EQ(y.values(), alone.values());
    forward.z = {};
    forward.y = inference.view();
    linear_forward(backend().context(), forward);
    EXPECT_EQ(inference.values(), alone.values());

    TestTensor dz(backend(), dtype(), kRows, kCols), dx(backend(), dtype(), kRows, kTerms);
    TestTensor expected(backend(), dtype(), kRows, kTerms);
    linear_backward(backend().context(), {.dy = dy.view(),
                                          .x = x.view(),
                                          .weight = weight.view(),
                                          .activation = op,
                                          .z = z.view(),
                                          .dx = dx.view()});
    pointwise_backward(backend().context(),
                       {.op = op, .dy = dy.view(), .x = z.view(), .dx = dz.view()});
    linear_backward(
        backend().context(),
        {.dy = dz.view(), .x = x.view(), .weight = weight.view(), .dx = expected.view()});
    EXPECT_EQ(dx.values(), expected.values());
  }
}

// The reference is made of a product and of the activation alone.
TEST_P(LinearOp, gradient_at_an_activation) {
  for (const auto& [rows, terms, cols] :
       {std::array{100, 30, 70}, std::array{136, 72, 200}, std::array{5, 64, 96},
        std::array{16, 72, 200}, std::array{129, 2056, 72}}) {
    const Values dy_values = random_normal(rows * terms, dtype());
    const TestTensor dy(backend(), dtype(), rows, terms, dy_values);
    TestTensor z(backend(), dtype(), rows, cols, random_normal(rows * cols, dtype()));
    const Values weight_values = random_normal(terms * cols, dtype());
    const TestTensor weight(backend(), dtype(), terms, cols, weight_values);
    const Sums dh = product(rows, cols, terms, dy_values, {terms, 1}, weight_values, {1, cols});
    for (const Pointwise op : {Pointwise::kGelu, Pointwise::kSilu}) {
      TestTensor dz(backend(), dtype(), rows, cols), h(backend(), dtype(), rows, cols);
      linear_dact(backend().context(), {.dy = dy.view(),
                                        .weight = weight.view(),
                                        .z = z.view(),
                                        .activation = op,
                                        .dz = dz.view(),
                                        .h = h.view()});
      TestTensor slope(backend(), dtype(), rows, cols), value(backend(), dtype(), rows, cols);
      const TestTensor ones(backend(), dtype(), rows, cols, Values(rows * cols, 1));
      pointwise_backward(
          backend().context(),
          {.op = op, .dy = ones.view(), .x = z.view(), .dx = slope.view(), .y = value.view()});
      EXPECT_EQ(h.values(), value.values());
      const Values slopes = slope.values(), found = dz.values();
      for (const bool keeps_h : {false, true}) {
        TestTensor over(backend(), dtype(), rows, cols, z.values());
        linear_dact(backend().context(), {.dy = dy.view(),
                                          .weight = weight.view(),
                                          .z = over.view(),
                                          .activation = op,
                                          .dz = over.view(),
                                          .h = keeps_h ? h.view() : TensorView{}});
        EXPECT_EQ(over.values(), found) << "over z";
        EXPECT_EQ(h.values(), value.values());
      }
      for (std::size_t i = 0; i < found.size(); ++i) {
        const double unit = 3 * unit_roundoff(dtype()) * std::abs(dh.sum[i] * slopes[i]);
        const double sums = 40 * unit_roundoff(DType::kFloat32) * dh.size[i];
        const double tiny = unit_roundoff(dtype()) * std::abs(dh.sum[i]) * 0.01 + 0x1p-24;
        ASSERT_NEAR(found[i], dh.sum[i] * slopes[i], unit + sums + tiny) << "element " << i;
      }
    }
  }
}

// Partial tiles of rows and columns, many tiles, rows with gaps between them, shapes that Hopper's
// engine refuses, and an empty one.
constexpr Sizes kDactSizes[] = {{1, 64, 8, {}},          {17, 72, 1504, {}},    {127, 136, 520, {}},
                                {129, 64, 200, {0, 24}}, {1000, 64, 8, {8}},    {4097, 64, 40, {}},
                                {4097, 64, 200, {0, 8}}, {100, 30, 70, {1, 3}}, {5, 33, 57, {}},
                                {3, 0, 16, {}},          {0, 64, 16, {}}};

// On CUDA the rows that are summed are those of dz, on the CPU what these were before rounding.
void expect_sum_of_rows(TestTensor& dbias, DType dtype, const Sums& expected, double rounding) {
  const Values got = dbias.values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = unit_roundoff(dtype) * std::abs(expected.sum[i]) * 1.01 +
                         (rounding + 20 * unit_roundoff(DType::kFloat32)) * expected.size[i];
    ASSERT_NEAR(got[i], expected.sum[i], error + 0x1p-24) << "column " << i;
  }
  EXPECT_TRUE(dbias.surroundings_intact());
}

TEST_P(LinearOp, gradient_of_the_bias_at_an_activation) {
  const DType wide_dtype = dtype() == DType::kFloat64 ? dtype() : DType::kFloat32;
  for (const auto& [rows, terms, cols, layout] : kDactSizes) {
    // Many parts of rows and of columns at once: a card's, and long under a CPU's checkers.
    if (!is_on_cuda(backend()) && rows * cols > 500000) continue;
    SCOPED_TRACE(std::to_string(rows) + 'x' + std::to_string(terms) + 'x' + std::to_string(cols));
    const TestTensor dy(backend(), dtype(), rows, terms, random_normal(rows * terms, dtype()));
    const TestTensor z(backend(), dtype(), rows, cols, random_normal(rows * cols, dtype()), layout);
    const Values weights = random_normal(terms * cols, dtype(), 0, 1 / std::sqrt(terms + 1.0));
    const TestTensor by_rows(backend(), dtype(), terms, cols, weights);
    const TestTensor by_columns(backend(), dtype(), cols, terms, weights);
    for (const TensorView& weight : {by_rows.view(), transposed(by_columns.view())}) {
      TestTensor dz(backend(), dtype(), rows, cols, layout), h(backend(), dtype(), rows, cols);
      TestTensor dbias(backend(), dtype(), 1, cols), wide(backend(), wide_dtype, 1, cols);
      LinearDact call{.dy = dy.view(),
                      .weight = weight,
                      .z = z.view(),
                      .activation = Pointwise::kGeluTanh,
                      .dz = dz.view()};
      linear_dact(backend().context(), call);
      const Values alone = dz.values();
      call.h = h.view();
      call.dbias = dbias.vector();
      linear_dact(backend().context(), call);
      EXPECT_EQ(dz.values(), alone);
      call.dbias = wide.vector();
      linear_dact(backend().context(), call);
      EXPECT_EQ(dz.values(), alone);
      EXPECT_TRUE(dz.surroundings_intact());
      EXPECT_TRUE(h.surroundings_intact());
      const Sums sums = product(1, cols, rows, Values(rows, 1), {0, 1}, alone, {1, cols});
      const double rounding = is_on_cuda(backend()) ? 0 : unit_roundoff(dtype());
      expect_sum_of_rows(dbias, dtype(), sums, rounding);
      expect_sum_of_rows(wide, wide_dtype, sums, rounding);
    }
  }
}

// A tile has more rows than the matrix: 0 times a weight that is not finite.
TEST_P(LinearOp, rows_that_are_not_there_are_not_summed) {
  constexpr std::int64_t kRows = 130, kTerms = 64, kCols = 16;
  Values weights(kTerms * kCols, 1.0 / kTerms);
  weights[3] = kInfinity;
  const TestTensor dy(backend(), dtype(), kRows, kTerms, Values(kRows * kTerms, 1));
  const TestTensor weight(backend(), dtype(), kTerms, kCols, weights);
  const TestTensor z(backend(), dtype(), kRows, kCols, Values(kRows * kCols, 1));
  TestTensor dz(backend(), dtype(), kRows, kCols), dbias(backend(), dtype(), 1, kCols);
  linear_dact(backend().context(), {.dy = dy.view(),
                                    .weight = weight.view(),
                                    .z = z.view(),
                                    .activation = Pointwise::kRelu,
                                    .dz = dz.view(),
                                    .dbias = dbias.vector()});
  Values expected(kCols, kRows);
  expected[3] = kInfinity;
  EXPECT_EQ(dbias.values(), expected);
}

TEST_P(LinearOp, a_gradient_of_the_bias_has_a_value_a_column_of_z) {
  const TestTensor dy(backend(), dtype(), 4, 3, Values(12, 1));
  const TestTensor weight(backend(), dtype(), 3, 8, Values(24, 1));
  const TestTensor z(backend(), dtype(), 4, 8, Values(32, 1));
  TestTensor dz(backend(), dtype(), 4, 8), dbias(backend(), dtype(), 1, 3);
  EXPECT_EQ(error_of([&] {
              linear_dact(backend().context(), {.dy = dy.view(),
                                                .weight = weight.view(),
                                                .z = z.view(),
                                                .activation = Pointwise::kGelu,
                                                .dz = dz.view(),
                                                .dbias = dbias.vector()});
            }),
            "linear_dact: dbias has 3 elements, expected 8 (the columns of weight)");
  EXPECT_TRUE(dz.untouched());
}

TEST_P(LinearOp, any_threads_give_the_same_bits) {
  constexpr std::int64_t kRows = 200, kTerms = 270, kCols = 400;
  const TestTensor x(backend(), dtype(), kRows, kTerms, random_normal(kRows * kTerms, dtype()));
  const TestTensor weight(backend(), dtype(), kCols, kTerms,
                          random_normal(kCols * kTerms, dtype()));
  std::vector<std::vector<std::uint8_t>> seen;
  for (const Context& context : contexts_with_different_threads(backend())) {
    TestTensor y(backend(), dtype(), kRows, kCols);
    linear_forward(context, {.x = x.view(), .weight = weight.view(), .y = y.view()});
    seen.push_back(y.bytes());
    EXPECT_EQ(seen.back(), seen.front());
  }
}

TEST_P(LinearOp, says_what_does_not_fit) {
  const TestTensor x(backend(), dtype(), 4, 8, Values(32, 1));
  const TestTensor weight(backend(), dtype(), 3, 8, Values(24, 1));
  const TestTensor narrow(backend(), dtype(), 3, 7, Values(21, 1));
  const TestTensor bias(backend(), dtype(), 1, 4, Values(4, 1));
  TestTensor y(backend(), dtype(), 4, 3);
  const LinearForward fits{.x = x.view(), .weight = weight.view(), .y = y.view()};
  const auto error = [&](auto change) {
    LinearForward arguments = fits;
    change(arguments);
    return error_of([&] { linear_forward(backend().context(), arguments); });
  };
  EXPECT_EQ(error([&](LinearForward& a) { a.weight = narrow.view(); }),
            "linear: weight has 7 columns, expected 8 (the last dimension of x)");
  EXPECT_EQ(error([&](LinearForward& a) { a.bias = bias.vector(); }),
            "linear: bias has 4 elements, expected 3 (the rows of weight)");
  EXPECT_EQ(error([](LinearForward& a) { a.activation = Pointwise::kSwiGlu; }),
            "linear_act: activation is swiglu, expected one of a single tensor");
  EXPECT_EQ(error([&](LinearForward& a) { a.y = x.view(); }).substr(0, 24),
            "linear: y has shape (4, ");
  EXPECT_EQ(
      error([](LinearForward& a) { a.algorithm = -3; }),
      "linear: algorithm is -3, expected a number of cuBLASLt's from 0 on, -1 for any, or -2 to "
      "prefer cuBLASLt's");
  if (!is_on_cuda(backend())) {
    EXPECT_EQ(error([](LinearForward& a) { a.algorithm = 3; }),
              "linear: algorithm is 3, expected -1 or -2 (cuBLASLt's run on CUDA)");
  }
  EXPECT_TRUE(y.untouched());
}

}  // namespace
}  // namespace transformer_kernels::testing
