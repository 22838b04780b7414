// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/packed_weight.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cpu_test.h"
#include "error_of.h"
#include "linear/product_reference.h"
#include "parallel_hooks.h"
#include "test_tensor.h"
#include "transformer_kernels/linear/linear.h"

namespace transformer_kernels::testing {
namespace {

class PackedWeights : public CpuTest {};

INSTANTIATE_TEST_SUITE_P(on_cpu, PackedWeights, floating_dtypes(), name_of_cpu_test);

// Few rows of every tile and more rows; parts, steps and panels that are not whole.
constexpr std::int64_t kRows[] = {1, 2, 3, 5, 8, 9, 16, 17, 100};
constexpr std::int64_t kTerms = 333, kCols = 203;

TEST_P(PackedWeights, match_the_reference_in_both_layouts) {
  const Values weight_values = random_normal(kCols * kTerms, dtype());
  const Values x_values = random_normal(100 * kTerms, dtype());
  const Values bias_values = random_normal(kCols, dtype());
  const TestTensor by_terms(cpu(), dtype(), kCols, kTerms, weight_values, {1, 3});
  const TestTensor by_lines(cpu(), dtype(), kTerms, kCols, by_columns(weight_values, kCols, kTerms),
                            {1, 3});
  const TestTensor bias(cpu(), dtype(), 1, kCols, bias_values);
  const Sums expected =
      product(100, kCols, kTerms, x_values, {kTerms, 1}, weight_values, {kTerms, 1}, bias_values);
  for (const TensorView& weight : {by_terms.view(), transposed(by_lines.view())}) {
    const PackedWeight packed(cpu().context(), weight);
    Values row;  // the first, which the others do not change
    for (const std::int64_t rows : kRows) {
      SCOPED_TRACE(std::to_string(rows) + " rows");
      const TestTensor x(cpu(), dtype(), rows, kTerms, x_values, {1, 5});
      TestTensor y(cpu(), dtype(), rows, kCols, Layout{1, 7});
      linear_forward(cpu().context(), {.x = x.view(),
                                       .weight = weight,
                                       .packed = packed.view(),
                                       .bias = bias.vector(),
                                       .y = y.view()});
      expect_close(dtype(), y.values(), expected);
      EXPECT_TRUE(y.surroundings_intact());
      const Values seen = y.values();
      const Values first(seen.begin(), seen.begin() + kCols);
      if (row.empty()) row = first;
      EXPECT_TRUE(rows > 4 || first == row);
    }
  }
}

TEST_P(PackedWeights, any_threads_give_the_same_bits) {
  const TestTensor x(cpu(), dtype(), 9, 270, random_normal(9 * 270, dtype()));
  const TestTensor weight(cpu(), dtype(), 700, 270, random_normal(700 * 270, dtype()));
  std::vector<std::vector<std::uint8_t>> seen;
  for (const Context& context : contexts_with_different_threads(cpu())) {
    const PackedWeight packed(context, weight.view());
    TestTensor y(cpu(), dtype(), 9, 700);
    linear_forward(context, {.x = x.view(),
                             .weight = weight.view(),
                             .packed = packed.view(),
                             .activation = Pointwise::kSilu,
                             .y = y.view()});
    seen.push_back(y.bytes());
    EXPECT_EQ(seen.back(), seen.front());
  }
}

TEST_P(PackedWeights, follow_the_weight_when_they_are_packed_again) {
  const TestTensor x(cpu(), dtype(), 2, 40, Values(80, 1));
  TestTensor weight(cpu(), dtype(), 3, 40, Values(120, 1));
  PackedWeight packed(cpu().context(), weight.view());
  PackedWeight moved = std::move(packed);
  const auto first_sum = [&] {
    TestTensor y(cpu(), dtype(), 2, 3);
    linear_forward(cpu().context(),
                   {.x = x.view(), .weight = weight.view(), .packed = moved.view(), .y = y.view()});
    return y.values().front();
  };
  EXPECT_EQ(first_sum(), 40);
  const TestTensor twice(cpu(), dtype(), 3, 40, Values(120, 2));
  pointwise_forward(cpu().context(),
                    {.op = Pointwise::kRelu, .x = twice.view(), .y = weight.view()});
  EXPECT_EQ(first_sum(), 40);
  moved.repack(cpu().context());
  EXPECT_EQ(first_sum(), 80);
}

TEST(PackedWeight, says_what_does_not_fit) {
  Backend& cpu = *backends().front();
  const TestTensor x(cpu, DType::kFloat32, 2, 40, Values(80, 1));
  const TestTensor weight(cpu, DType::kFloat32, 3, 40, Values(120, 1));
  TestTensor y(cpu, DType::kFloat32, 2, 3);
  const PackedWeight packed(cpu.context(), weight.view());
  TensorView shorter = packed.view();
  shorter.sizes[0] -= 1;
  const auto error = [&](const TensorView& view) {
    return error_of([&] {
      linear_forward(cpu.context(),
                     {.x = x.view(), .weight = weight.view(), .packed = view, .y = y.view()});
    });
  };
  const std::string bytes = std::to_string(packed_bytes(weight.view()));
  EXPECT_NE(error(shorter).find(bytes + " (bytes of the packed weight)"), std::string::npos)
      << error(shorter);
  EXPECT_EQ(error(x.view()).substr(0, 42), "linear: packed is float32, expected uint8 ");
  EXPECT_TRUE(y.untouched());
  EXPECT_EQ(error_of([&] { PackedWeight(cpu.context(), x.vector()); }),
            "pack_weight: weight has 1 dimensions, expected 2");
}

}  // namespace
}  // namespace transformer_kernels::testing
