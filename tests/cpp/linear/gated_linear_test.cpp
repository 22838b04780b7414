// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/gated_linear.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "backend_test.h"
#include "error_of.h"
#include "linear/product_reference.h"
#include "test_tensor.h"
#include "transformer_kernels/linear/linear.h"

namespace transformer_kernels::testing {
namespace {

class GatedLinearOp : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(on, GatedLinearOp, all_backends_and_dtypes(), name_of_backend_test);

constexpr Pointwise kGates[] = {Pointwise::kGeGlu, Pointwise::kGeGluTanh, Pointwise::kSwiGlu,
                                Pointwise::kReGlu};

struct Sizes {
  std::int64_t rows, terms, cols;
  Layout layout;
};
// Of one tile, of tiles that are not whole, of few rows, of rows that no tensor map reads, of none.
constexpr Sizes kSizes[] = {
    {128, 64, 96, {}}, {300, 200, 104, {}}, {5, 64, 40, {}}, {33, 70, 51, {1, 3}}, {20, 0, 8, {}}};

// The op's parts, each of which is tested for itself: its results are theirs, bit by bit where both
// sum in one order.
TEST_P(GatedLinearOp, is_two_layers_and_a_gate) {
  int number = 0;
  for (const auto& [rows, terms, cols, layout] : kSizes) {
    for (const bool has_bias : {false, true}) {
      const Pointwise op = kGates[number++ % 4];
      SCOPED_TRACE(std::to_string(rows) + 'x' + std::to_string(terms) + 'x' + std::to_string(cols) +
                   ' ' + name_of(op));
      const auto made = [&](std::int64_t m, std::int64_t n) {
        return random_normal(m * n, dtype());
      };
      const Values x_values = made(rows, terms), weight_values = made(cols, terms);
      const Values up_values = made(cols, terms);
      const TestTensor x(backend(), dtype(), rows, terms, x_values, layout);
      const TestTensor weight(backend(), dtype(), cols, terms, weight_values, layout);
      const TestTensor up_weight(backend(), dtype(), cols, terms, up_values, layout);
      const TestTensor bias(backend(), dtype(), 1, cols, made(1, cols));
      const TestTensor up_bias(backend(), dtype(), 1, cols, made(1, cols));
      const TensorView b = has_bias ? bias.vector() : TensorView{};
      const TensorView up_b = has_bias ? up_bias.vector() : TensorView{};

      TestTensor gate(backend(), dtype(), rows, cols, layout),
          up(backend(), dtype(), rows, cols, layout);
      TestTensor y(backend(), dtype(), rows, cols, layout);
      GatedLinearForward forward{.x = x.view(),
                                 .weight = weight.view(),
                                 .up_weight = up_weight.view(),
                                 .bias = b,
                                 .up_bias = up_b,
                                 .activation = op,
                                 .gate = gate.view(),
                                 .up = up.view(),
                                 .y = y.view()};
      gated_linear_forward(backend().context(), forward);
      expect_close(dtype(), gate.values(),
                   product(rows, cols, terms, x_values, {terms, 1}, weight_values, {terms, 1}));
      expect_close(dtype(), up.values(),
                   product(rows, cols, terms, x_values, {terms, 1}, up_values, {terms, 1}));
      TestTensor expected(backend(), dtype(), rows, cols);
      pointwise_forward(backend().context(), {.op = op,
                                              .x = gate.view(),
                                              .up = up.view(),
                                              .bias = b,
                                              .up_bias = up_b,
                                              .y = expected.view()});
      EXPECT_EQ(y.values(), expected.values());
      for (TestTensor* each : {&gate, &up, &y}) EXPECT_TRUE(each->surroundings_intact());

      TestTensor alone(backend(), dtype(), rows, cols, layout);
      forward.gate = forward.up = {};
      forward.y = alone.view();
      gated_linear_forward(backend().context(), forward);
      // What is not kept has no gaps: cuBLASLt may sum in another way.
      if (!is_on_cuda(backend()) || layout.gap == 0) {
        EXPECT_EQ(alone.values(), y.values());
      }
      EXPECT_TRUE(alone.surroundings_intact());
    }
  }
}

TEST_P(GatedLinearOp, says_what_does_not_fit) {
  const TestTensor x(backend(), dtype(), 4, 8, Values(32, 1));
  const TestTensor weight(backend(), dtype(), 3, 8, Values(24, 1));
  const TestTensor other(backend(), dtype(), 2, 8, Values(16, 1));
  const TestTensor bias(backend(), DType::kFloat32, 1, 3, Values(3, 1));
  const TestTensor narrow(backend(), DType::kFloat16, 1, 3, Values(3, 1));
  TestTensor y(backend(), dtype(), 4, 3), gate(backend(), dtype(), 4, 3);
  const GatedLinearForward good{.x = x.view(),
                                .weight = weight.view(),
                                .up_weight = weight.view(),
                                .activation = Pointwise::kSwiGlu,
                                .y = y.view()};
  const auto error = [&](auto&& spoil) {
    GatedLinearForward arguments = good;
    spoil(arguments);
    return error_of([&] { gated_linear_forward(backend().context(), arguments); });
  };
  EXPECT_EQ(error([&](auto& a) { a.activation = Pointwise::kSilu; }),
            "gated_linear: activation is silu, expected a gated one");
  EXPECT_EQ(error([&](auto& a) { a.up_weight = other.view(); }).substr(0, 36),
            "gated_linear: up_weight has shape (2");
  EXPECT_EQ(error([&](auto& a) { a.gate = gate.view(); }),
            "gated_linear: up is missing, expected it (gate and up are kept together)");
  EXPECT_EQ(error([&](auto& a) { a.y = {}; }), "gated_linear: y is missing");
  EXPECT_EQ(error([&](auto& a) { a.y = x.view(); }).substr(0, 31),
            "gated_linear: y has shape (4, 8");
  if (dtype() == DType::kFloat16) {
    EXPECT_EQ(error([&](auto& a) {
                a.bias = bias.vector();
                a.up_bias = narrow.vector();
              }),
              "gated_linear: up_bias is float16, expected float32 (the dtype of bias)");
  }
  EXPECT_TRUE(y.untouched());
  EXPECT_TRUE(gate.untouched());
}

}  // namespace
}  // namespace transformer_kernels::testing
