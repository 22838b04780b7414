// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/gated_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

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
// One tile, partial tiles, few rows, rows that no tensor map can read, no terms.
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
      // Results that are not kept have no gaps: cuBLASLt may sum those in another order.
      if (!is_on_cuda(backend()) || layout.gap == 0) {
        EXPECT_EQ(alone.values(), y.values());
      }
      EXPECT_TRUE(alone.surroundings_intact());
    }
  }
}

// The gradients follow from a product and a gate, each of which has its own tests: the gate's
// slopes are the pointwise op's gradients for dy = 1.
void expect_gradients(DType dtype, const Values& found, const Sums& dh, const Values& slopes,
                      const char* name) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double size = std::max(1.0, std::abs(slopes[i]));
    const double units = 5 * unit_roundoff(dtype) * std::abs(dh.sum[i] * slopes[i]);
    const double sums = 40 * unit_roundoff(DType::kFloat32) * dh.size[i] * size;
    const double tiny = unit_roundoff(dtype) * std::abs(dh.sum[i]) * 0.01 + 0x1p-24;
    ASSERT_NEAR(found[i], dh.sum[i] * slopes[i], units + sums + tiny) << name << ", element " << i;
  }
}

TEST_P(GatedLinearOp, gradient_at_a_gate) {
  int number = 0;
  for (const auto& [rows, terms, cols, layout] : kSizes) {
    for (const auto& [has_bias, by_columns] : {std::pair{false, false}, std::pair{false, true},
                                               std::pair{true, false}, std::pair{true, true}}) {
      const Pointwise op = kGates[number++ % 4];
      SCOPED_TRACE(std::to_string(rows) + 'x' + std::to_string(terms) + 'x' + std::to_string(cols) +
                   ' ' + name_of(op) + (has_bias ? " + bias" : "") +
                   (by_columns ? ", by columns" : ""));
      const auto made = [&](std::int64_t m, std::int64_t n) {
        return random_normal(m * n, dtype());
      };
      const Values dy_values = made(rows, terms), weight_values = made(terms, cols);
      const TestTensor dy(backend(), dtype(), rows, terms, dy_values, layout);
      const TestTensor weight(backend(), dtype(), by_columns ? cols : terms,
                              by_columns ? terms : cols, weight_values, layout);
      TestTensor gate(backend(), dtype(), rows, cols, made(rows, cols), layout);
      TestTensor up(backend(), dtype(), rows, cols, made(rows, cols), layout);
      const TestTensor bias(backend(), dtype(), 1, cols, made(1, cols));
      const TestTensor up_bias(backend(), dtype(), 1, cols, made(1, cols));
      const TestTensor ones(backend(), dtype(), rows, cols, Values(rows * cols, 1));
      TestTensor slope(backend(), dtype(), rows, cols), value(backend(), dtype(), rows, cols);
      TestTensor product_of_both(backend(), dtype(), rows, cols);
      PointwiseBackward alone{.op = op,
                              .dy = ones.view(),
                              .x = gate.view(),
                              .up = up.view(),
                              .dx = slope.view(),
                              .dup = value.view(),
                              .y = product_of_both.view()};
      if (has_bias) alone.bias = bias.vector(), alone.up_bias = up_bias.vector();
      pointwise_backward(backend().context(), alone);

      TestTensor dgate(backend(), dtype(), rows, cols, layout);
      TestTensor dup(backend(), dtype(), rows, cols, layout), h(backend(), dtype(), rows, cols);
      LinearDgated call{.dy = dy.view(),
                        .weight = by_columns ? transposed(weight.view()) : weight.view(),
                        .gate = gate.view(),
                        .up = up.view(),
                        .bias = alone.bias,
                        .up_bias = alone.up_bias,
                        .activation = op,
                        .dgate = dgate.view(),
                        .dup = dup.view(),
                        .h = h.view()};
      linear_dgated(backend().context(), call);
      const Order order = by_columns ? Order{terms, 1} : Order{1, cols};
      const Sums dh = product(rows, cols, terms, dy_values, {terms, 1}, weight_values, order);
      expect_gradients(dtype(), dgate.values(), dh, slope.values(), "dgate");
      expect_gradients(dtype(), dup.values(), dh, value.values(), "dup");
      EXPECT_EQ(h.values(), product_of_both.values());
      for (TestTensor* each : {&dgate, &dup, &h}) EXPECT_TRUE(each->surroundings_intact());

      TestTensor dgate_again(backend(), dtype(), rows, cols);
      TestTensor dup_again(backend(), dtype(), rows, cols);
      call.dgate = dgate_again.view();
      call.dup = dup_again.view();
      call.h = {};
      linear_dgated(backend().context(), call);
      EXPECT_EQ(dgate_again.values(), dgate.values());
      EXPECT_EQ(dup_again.values(), dup.values());

      for (const bool keeps_h : {false, true}) {
        TestTensor over(backend(), dtype(), rows, cols, gate.values(), layout);
        TestTensor up_over(backend(), dtype(), rows, cols, up.values(), layout);
        call.gate = call.dgate = over.view();
        call.up = call.dup = up_over.view();
        call.h = keeps_h ? h.view() : TensorView{};
        linear_dgated(backend().context(), call);
        EXPECT_EQ(over.values(), dgate.values()) << "over the gate";
        EXPECT_EQ(up_over.values(), dup.values()) << "over up";
        EXPECT_EQ(h.values(), product_of_both.values());
      }
    }
  }
}

TEST_P(GatedLinearOp, says_what_does_not_fit_at_a_gate) {
  const TestTensor dy(backend(), dtype(), 4, 3, Values(12, 1));
  const TestTensor weight(backend(), dtype(), 3, 8, Values(24, 1));
  const TestTensor gate(backend(), dtype(), 4, 8, Values(32, 1));
  const TestTensor bias(backend(), dtype(), 1, 3, Values(3, 1));
  TestTensor dgate(backend(), dtype(), 4, 8), dup(backend(), dtype(), 4, 8);
  const LinearDgated good{.dy = dy.view(),
                          .weight = weight.view(),
                          .gate = gate.view(),
                          .up = gate.view(),
                          .activation = Pointwise::kSwiGlu,
                          .dgate = dgate.view(),
                          .dup = dup.view()};
  const auto error = [&](auto&& spoil) {
    LinearDgated arguments = good;
    spoil(arguments);
    return error_of([&] { linear_dgated(backend().context(), arguments); });
  };
  EXPECT_EQ(error([&](auto& a) { a.activation = Pointwise::kSilu; }),
            "linear_dgated: activation is silu, expected a gated one");
  EXPECT_EQ(error([&](auto& a) { a.weight = transposed(weight.view()); }),
            "linear_dgated: weight has 3 columns, expected 8 (the last dimension of gate)");
  EXPECT_EQ(error([&](auto& a) { a.up_bias = bias.vector(); }),
            "linear_dgated: up_bias has 3 elements, expected 8 (the columns of weight)");
  EXPECT_EQ(error([&](auto& a) { a.dup = {}; }), "linear_dgated: dup is missing");
  EXPECT_EQ(error([&](auto& a) { a.dup = a.dgate; }),
            "linear_dgated: dup overlaps dgate, expected memory of its own");
  EXPECT_TRUE(dgate.untouched());
  EXPECT_TRUE(dup.untouched());
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
