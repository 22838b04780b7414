// SPDX-License-Identifier: MIT
#include "backend_test.h"
#include "parallel_hooks.h"
#include "pointwise/pointwise_cases.h"

namespace transformer_kernels::testing {
namespace {

class PointwiseOps : public BackendTest {
 protected:
  static void check_all(Matrix m, const PointwiseOptions& o, const Values& x = {}) {
    for (Pointwise op : all_pointwise_ops()) check_pointwise(backend(), op, dtype(), m, o, x);
  }
};

INSTANTIATE_TEST_SUITE_P(on, PointwiseOps, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(PointwiseOps, edge_shapes) {
  for (std::int64_t cols : {0, 1, 7, 8, 31, 33, 130}) {
    for (std::int64_t rows : {0, 1, 5}) {
      for (bool bias : {false, true}) check_all({rows, cols}, {.bias = bias, .y = true});
    }
  }
}

TEST_P(PointwiseOps, long_rows) {
  for (bool bias : {false, true}) check_all({2, 40001}, {.bias = bias});
}

TEST_P(PointwiseOps, many_rows) { check_all({1100, 24}, {.bias = true, .y = true}); }

TEST_P(PointwiseOps, layouts) {
  for (Layout layout : {Layout{0, 24}, Layout{1, 0}, Layout{3, 5}, Layout{0, 1}}) {
    for (bool bias : {false, true}) {
      check_all({3, 136}, {.bias = bias, .y = true, .layout = layout});
    }
  }
}

TEST_P(PointwiseOps, packed) {
  for (std::int64_t cols : {1, 13, 64, 200}) {
    for (bool bias : {false, true}) {
      check_all({5, cols}, {.bias = bias, .packed = true});
      check_all({5, cols}, {.bias = bias, .packed = true, .layout = {1, 2}});
    }
  }
}

TEST_P(PointwiseOps, in_place) {
  for (bool bias : {false, true}) {
    for (bool packed : {false, true}) {
      check_all({7, 333}, {.bias = bias, .packed = packed, .in_place = true});
    }
  }
}

TEST_P(PointwiseOps, bias_in_float32) {
  check_all({150, 65}, {.bias = true, .wide_bias = true, .y = true});
}

TEST_P(PointwiseOps, whole_range) {
  Values x;
  for (int i = -20 * 512; i <= 20 * 512; ++i) x.push_back(rounded_to(dtype(), i / 512.0));
  for (int exponent = -100; exponent <= 100; ++exponent) {
    for (double sign : {1.0, -1.0}) {
      x.push_back(rounded_to(dtype(), std::ldexp(sign * 1.3, exponent)));
    }
  }
  check_all({1, static_cast<std::int64_t>(x.size())}, {.y = true}, x);
}

TEST_P(PointwiseOps, special_values) {
  const Format f = format_of(dtype());
  const double largest = std::ldexp(2 - std::ldexp(1.0, -f.fraction_bits), f.max_exponent);
  const double tiny = std::ldexp(1.0, f.min_exponent - f.fraction_bits);
  Values special = {0.0, kInfinity, kNan, largest / 16, 1e3, tiny, 3 * tiny, 1.0};
  for (double saturation : {5.9, 11.8, 14.1, 40.0, 87.3, 88.7, 89.5, 104.0, 700.0, 1e4}) {
    special.push_back(rounded_to(dtype(), saturation));
  }
  Values x;
  for (double value : special) {
    x.push_back(value);
    x.push_back(-value);
  }
  for (std::int64_t cols : {36, 4}) {
    const Values some(x.begin(), x.begin() + cols);
    check_all({1, cols}, {.y = true}, some);
  }
}

// Zeros keep their sign where the formula has it.
TEST_P(PointwiseOps, sign_of_zero) {
  for (Pointwise op : {Pointwise::kGelu, Pointwise::kGeluTanh, Pointwise::kSilu}) {
    PointwiseForwardRun run(backend(), op, dtype(), Matrix{1, 2}, PointwiseOptions{},
                            Values{0.0, -0.0});
    pointwise_forward(backend().context(), run.arguments());
    const Values y = run.y.values();
    EXPECT_EQ(y[0], 0);
    EXPECT_FALSE(std::signbit(y[0]));
    EXPECT_EQ(y[1], 0);
    EXPECT_TRUE(std::signbit(y[1]));
  }
}

TEST_P(PointwiseOps, backward_recomputes_what_forward_gave) {
  for (Pointwise op : all_pointwise_ops()) {
    PointwiseForwardRun forward(backend(), op, dtype(), Matrix{9, 65},
                                PointwiseOptions{.bias = true});
    PointwiseBackwardRun backward(backend(), op, dtype(), Matrix{9, 65},
                                  PointwiseOptions{.bias = true, .y = true});
    PointwiseForward a = forward.arguments();
    PointwiseBackward b = backward.arguments();
    a.x = b.x;
    a.up = b.up;
    a.bias = b.bias;
    a.up_bias = b.up_bias;
    pointwise_forward(backend().context(), a);
    pointwise_backward(backend().context(), b);
    EXPECT_EQ(forward.y.bytes(), backward.y.bytes()) << name_of(op);
  }
}

TEST_P(PointwiseOps, repeatable) {
  for (Pointwise op : {Pointwise::kGelu, Pointwise::kSwiGlu}) {
    PointwiseBackwardRun run(backend(), op, dtype(), Matrix{701, 77},
                             PointwiseOptions{.bias = true, .y = true});
    std::vector<std::vector<std::uint8_t>> first;
    for (const Context& context : contexts_with_different_threads(backend())) {
      pointwise_backward(context, run.arguments());
      const std::vector<std::vector<std::uint8_t>> bytes = {
          run.dx_and_dup.memory.bytes(), run.dbias.bytes(), run.dup_bias.bytes(), run.y.bytes()};
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first);
    }
  }
}

TEST_P(PointwiseOps, one_bias_of_two) {
  PointwiseBackwardRun run(backend(), Pointwise::kGeGlu, dtype(), Matrix{6, 40},
                           PointwiseOptions{.bias = true});
  PointwiseBackwardRun same(backend(), Pointwise::kGeGlu, dtype(), Matrix{6, 40},
                            PointwiseOptions{.bias = true});
  PointwiseBackward a = run.arguments();
  PointwiseBackward b = a;
  pointwise_backward(backend().context(), a);
  const Values zeros(40, 0.0);
  TestTensor no_bias(backend(), dtype(), 1, 40, zeros);
  a.up_bias = no_bias.vector();
  a.dx = same.arguments().dx;
  a.dup = same.arguments().dup;
  pointwise_backward(backend().context(), a);
  b.up_bias = {};
  b.dbias = {};
  pointwise_backward(backend().context(), b);
  EXPECT_EQ(run.dx_and_dup.x_values(), same.dx_and_dup.x_values());
  EXPECT_EQ(run.dx_and_dup.up_values(), same.dx_and_dup.up_values());
}

}  // namespace
}  // namespace transformer_kernels::testing
