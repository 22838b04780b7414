// SPDX-License-Identifier: MIT
// Products of so few rows that the weight is read in place.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "backend_test.h"
#include "cpu_test.h"
#include "linear/product_reference.h"
#include "parallel_hooks.h"
#include "test_tensor.h"
#include "transformer_kernels/linear/linear.h"

namespace transformer_kernels::testing {
namespace {

class FewRows : public CpuTest {};

INSTANTIATE_TEST_SUITE_P(on_cpu, FewRows, floating_dtypes(), name_of_cpu_test);

// Every tile of rows, steps and vectors that are not whole, more than one task.
constexpr std::int64_t kRows[] = {1, 2, 3, 5, 8, 9, 16};
constexpr std::int64_t kTerms = 143, kCols = 603;

TEST_P(FewRows, match_the_reference_in_both_layouts) {
  const Values weight_values = random_normal(kCols * kTerms, dtype());
  const Values x_values = random_normal(16 * kTerms, dtype());
  const Values bias_values = random_normal(kCols, dtype());
  const TestTensor by_terms(cpu(), dtype(), kCols, kTerms, weight_values, {1, 3});
  const TestTensor by_lines(cpu(), dtype(), kTerms, kCols, by_columns(weight_values, kCols, kTerms),
                            {1, 3});
  const TestTensor bias(cpu(), dtype(), 1, kCols, bias_values);
  const Sums expected =
      product(16, kCols, kTerms, x_values, {kTerms, 1}, weight_values, {kTerms, 1}, bias_values);
  for (const TensorView& weight : {by_terms.view(), transposed(by_lines.view())}) {
    Values row;  // the first, which the others do not change
    for (const std::int64_t rows : kRows) {
      SCOPED_TRACE(std::to_string(rows) + " rows");
      const TestTensor x(cpu(), dtype(), rows, kTerms, x_values, {1, 5});
      TestTensor y(cpu(), dtype(), rows, kCols, Layout{1, 7});
      linear_forward(cpu().context(),
                     {.x = x.view(), .weight = weight, .bias = bias.vector(), .y = y.view()});
      expect_close(dtype(), y.values(), expected);
      EXPECT_TRUE(y.surroundings_intact());
      const Values seen = y.values();
      const Values first(seen.begin(), seen.begin() + kCols);
      if (row.empty()) row = first;
      EXPECT_EQ(first, row);
    }
  }
}

TEST_P(FewRows, activate_the_rounded_sum) {
  const TestTensor x(cpu(), dtype(), 5, 40, random_normal(5 * 40, dtype()));
  const TestTensor weight(cpu(), dtype(), 200, 40, random_normal(200 * 40, dtype()));
  TestTensor z(cpu(), dtype(), 5, 200), y(cpu(), dtype(), 5, 200), alone(cpu(), dtype(), 5, 200);
  linear_forward(cpu().context(), {.x = x.view(),
                                   .weight = weight.view(),
                                   .activation = Pointwise::kSilu,
                                   .z = z.view(),
                                   .y = y.view()});
  pointwise_forward(cpu().context(), {.op = Pointwise::kSilu, .x = z.view(), .y = alone.view()});
  EXPECT_EQ(y.values(), alone.values());
}

TEST_P(FewRows, any_threads_give_the_same_bits) {
  const TestTensor x(cpu(), dtype(), 9, 270, random_normal(9 * 270, dtype()));
  const TestTensor weight(cpu(), dtype(), 700, 270, random_normal(700 * 270, dtype()));
  const TestTensor by_lines(cpu(), dtype(), 270, 700, random_normal(700 * 270, dtype()));
  for (const TensorView& w : {weight.view(), transposed(by_lines.view())}) {
    std::vector<std::vector<std::uint8_t>> seen;
    for (const Context& context : contexts_with_different_threads(cpu())) {
      TestTensor y(cpu(), dtype(), 9, 700);
      linear_forward(context, {.x = x.view(), .weight = w, .y = y.view()});
      seen.push_back(y.bytes());
      EXPECT_EQ(seen.back(), seen.front());
    }
  }
}

// On every backend, aligned as its engine of few rows wants it: few columns and many.
class FewRowsOp : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(on, FewRowsOp, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(FewRowsOp, match_the_reference_whatever_the_others) {
  constexpr std::int64_t kMost = 16;
  // On CUDA the engine of few rows takes 16-bit numbers.
  const bool has_engine = !is_on_cuda(backend()) || size_of(dtype()) == 2;
  for (const auto& [terms, cols] : {std::array{328, 204}, std::array{72, 3208}}) {
    SCOPED_TRACE(std::to_string(cols) + " columns");
    const Values weight_values = random_normal(cols * terms, dtype());
    const Values x_values = random_normal(kMost * terms, dtype());
    const Values bias_values = random_normal(cols, dtype());
    const TestTensor by_terms(backend(), dtype(), cols, terms, weight_values);
    const TestTensor by_lines(backend(), dtype(), terms, cols,
                              by_columns(weight_values, cols, terms));
    const TestTensor bias(backend(), dtype(), 1, cols, bias_values);
    const Sums expected =
        product(kMost, cols, terms, x_values, {terms, 1}, weight_values, {terms, 1}, bias_values);
    for (const TensorView& weight : {by_terms.view(), transposed(by_lines.view())}) {
      Values first;
      for (const std::int64_t rows : {1, 7, 8, 9, 16}) {
        SCOPED_TRACE(std::to_string(rows) + " rows");
        const TestTensor x(backend(), dtype(), rows, terms, x_values);
        TestTensor y(backend(), dtype(), rows, cols, Layout{1, 5});
        linear_forward(backend().context(),
                       {.x = x.view(), .weight = weight, .bias = bias.vector(), .y = y.view()});
        expect_close(dtype(), y.values(), expected);
        EXPECT_TRUE(y.surroundings_intact());
        const Values seen = y.values();
        const Values row(seen.begin(), seen.begin() + cols);
        if (first.empty()) first = row;
        if (has_engine) {
          EXPECT_EQ(row, first);
        }
      }
    }
  }
}

}  // namespace
}  // namespace transformer_kernels::testing
