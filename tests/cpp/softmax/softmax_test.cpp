// SPDX-License-Identifier: MIT
#include "softmax/softmax_cases.h"

#include "backend_test.h"
#include "parallel_hooks.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::testing {
namespace {

class SoftmaxOp : public BackendTest {
 protected:
  static void both(SoftmaxShape s, SoftmaxOptions o) {
    for (bool log : {false, true}) {
      o.log = log;
      check_softmax(backend(), dtype(), s, o);
      check_softmax_backward(backend(), dtype(), s, o);
    }
  }
  static std::vector<DType> mask_dtypes() {
    if (dtype() == DType::kFloat64) return {DType::kBool, dtype()};
    return {DType::kBool, dtype(), DType::kFloat32};
  }
};

INSTANTIATE_TEST_SUITE_P(on, SoftmaxOp, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(SoftmaxOp, edge_shapes) {
  for (std::int64_t cols : {0, 1, 31, 32, 33, 127, 1000, 4097}) {
    for (std::int64_t rows : {0, 1, 199}) both({1, rows, cols}, {});
  }
}

// On CUDA few rows, many and masked ones run by different kernels. Widths are multiples of 16
// bytes.
TEST_P(SoftmaxOp, few_rows_and_many) {
  if (!is_on_cuda(backend())) GTEST_SKIP() << "for plans of CUDA";
  for (std::int64_t cols : {8, 264, 1032, 4096, 8200, 16384}) {
    for (std::int64_t rows : {1, 31}) {
      both({1, rows, cols}, {.scale = 0.7});
      both({1, rows, cols}, {.mask = DType::kBool});
    }
  }
  for (std::int64_t cols : {8, 264, 1032}) {
    for (bool log : {false, true}) check_softmax(backend(), dtype(), {1, 2049, cols}, {.log = log});
  }
}

TEST_P(SoftmaxOp, wide_rows) {
  for (std::int64_t cols : {8193, 20000, 70001}) {
    both({1, 3, cols}, {});
    both({1, 3, cols}, {.mask = DType::kBool, .scale = 0.5});
  }
}

TEST_P(SoftmaxOp, scale) {
  for (double scale : {0.125, -2.0, 0.0}) both({2, 5, 77}, {.scale = scale});
}

TEST_P(SoftmaxOp, masks_of_every_kind_and_broadcast) {
  for (DType mask : mask_dtypes()) {
    for (int bits = 0; bits < 8; ++bits) {
      const std::array<bool, 3> varies = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
      for (bool causal : {false, true}) {
        both({3, 7, 45}, {.mask = mask, .mask_varies = varies, .causal = causal, .scale = 0.3});
      }
    }
  }
}

// Some rows see everything, some little, some nothing.
TEST_P(SoftmaxOp, rows_without_a_visible_element_give_zero) {
  for (DType mask : mask_dtypes()) {
    both({4, 30, 3}, {.mask = mask, .share_visible = 0.2});
    both({1, 5, 100}, {.mask = mask, .share_visible = 0.0});
  }
}

TEST_P(SoftmaxOp, causal_is_aligned_to_the_bottom_right) {
  for (SoftmaxShape s : {SoftmaxShape{2, 33, 33}, {2, 5, 64}, {3, 40, 9}, {1, 1, 50}, {2, 7, 1}}) {
    both(s, {.causal = true});
  }
}

TEST_P(SoftmaxOp, layouts) {
  for (Layout layout : {Layout{0, 24}, Layout{1, 0}, Layout{3, 5}, Layout{0, 1}}) {
    both({2, 6, 257}, {.layout = layout});
    both({2, 6, 256}, {.mask = DType::kBool, .layout = layout});
  }
}

TEST_P(SoftmaxOp, dx_in_the_memory_of_dy) {
  for (bool log : {false, true}) {
    for (SoftmaxShape s : {SoftmaxShape{2, 50, 333}, {1, 5, 4096}}) {
      check_softmax_backward(backend(), dtype(), s, {.log = log, .in_place = true});
    }
  }
}

// Rows that start anywhere. On CUDA many of them come in chunks, of which the last one is short.
TEST_P(SoftmaxOp, odd_widths) {
  for (std::int64_t cols : {17, 197, 513, 1023}) {
    for (std::int64_t rows : {7, 8, 9}) both({1, rows, cols}, {});
  }
  if (!is_on_cuda(backend())) return;
  for (std::int64_t cols :
       {17, 33, 46, 65, 93, 129, 190, 197, 247, 250, 257, 385, 509, 513, 639, 762, 1001, 1023}) {
    both({1, 2001, cols}, {.scale = 0.5, .in_place = true});
    both({1, 2010, cols}, {.scale = -2});
  }
}

// The maximum comes off first: scores of any size keep their differences.
TEST_P(SoftmaxOp, large_scores) {
  const double size = dtype() == DType::kFloat16 ? 3e4 : 1e30;
  const Values x(300, rounded_to(dtype(), size));
  SoftmaxRun run(backend(), dtype(), {1, 3, 100}, {}, x);
  softmax_forward(backend().context(), run.arguments());
  EXPECT_TRUE(close(dtype(), run.y.values(), Values(300, 0.01)));
}

Values values_with(double value, std::int64_t place, DType dtype) {
  Values x = random_normal(300, dtype);
  x[100 + place] = value;
  return x;
}

TEST_P(SoftmaxOp, infinities_and_nan) {
  for (std::int64_t place : {0, 57, 99}) {
    for (bool log : {false, true}) {
      const SoftmaxOptions o{.log = log};
      for (double bad : {kNan, kInfinity, -kInfinity}) {
        check_softmax(backend(), dtype(), {1, 3, 100}, o, values_with(bad, place, dtype()));
      }
    }
  }
}

TEST_P(SoftmaxOp, row_of_minus_infinity_without_a_mask_is_nan) {
  for (bool log : {false, true}) {
    SoftmaxRun run(backend(), dtype(), {1, 2, 40}, {.log = log}, Values(80, -kInfinity));
    softmax_forward(backend().context(), run.arguments());
    for (double y : run.y.values()) EXPECT_TRUE(std::isnan(y));
  }
}

// One visible element, and that is NaN: the row is not one that the mask hides.
TEST_P(SoftmaxOp, nan_is_not_taken_for_a_masked_row) {
  Values x(3, 1.0);
  x[2] = kNan;
  SoftmaxRun run(backend(), dtype(), {1, 1, 3}, {.mask = DType::kBool}, x);
  const std::uint8_t visible[3] = {0, 0, 1};
  SoftmaxForward a = run.arguments();
  backend().upload(a.mask.data, visible, sizeof(visible));
  softmax_forward(backend().context(), a);
  for (double y : run.y.values()) EXPECT_TRUE(std::isnan(y));
}

TEST_P(SoftmaxOp, repeatable) {
  SoftmaxRun forward(backend(), dtype(), {3, 301, 200}, {.mask = DType::kBool, .causal = true});
  SoftmaxRun unmasked(backend(), dtype(), {3, 301, 200}, {});
  SoftmaxBackwardRun backward(backend(), dtype(), {3, 301, 200}, {.log = true});
  std::vector<std::vector<std::uint8_t>> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    softmax_forward(context, forward.arguments());
    softmax_forward(context, unmasked.arguments());
    softmax_backward(context, backward.arguments());
    const std::vector<std::vector<std::uint8_t>> bytes = {forward.y.bytes(), unmasked.y.bytes(),
                                                          backward.dx.bytes()};
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

template <class Spoil>
void expect_error(Spoil&& spoil, const std::string& expected) {
  SoftmaxRun run(*cpu_backend(), DType::kFloat32, {2, 3, 8}, {.mask = DType::kBool});
  SoftmaxForward a = run.arguments();
  spoil(a);
  try {
    softmax_forward({}, a);
    ADD_FAILURE() << "accepted, expected: " << expected;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), expected);
  }
  EXPECT_TRUE(run.y.untouched());
}

TEST(SoftmaxErrors, have_exact_words_and_touch_nothing) {
  using Forward = SoftmaxForward;
  expect_error([](Forward& a) { a.x = {}; }, "softmax: x is missing");
  expect_error([](Forward& a) { a.x.dtype = DType::kBool; },
               "softmax: x is bool, expected a floating-point dtype");
  expect_error([](Forward& a) { a.y.dtype = DType::kFloat64; },
               "softmax: y is float64, expected float32 (the dtype of x)");
  expect_error([](Forward& a) { a.y.sizes[1] = 2; },
               "softmax: y has shape (2, 2, 8), expected (2, 3, 8) (the shape of x)");
  expect_error([](Forward& a) { a.scale = kInfinity; },
               "softmax: scale is inf, expected a finite number");
  expect_error([](Forward& a) { a.mask.dtype = DType::kFloat64; },
               "softmax: mask is float64, expected bool or float32");
  expect_error([](Forward& a) { a.mask.sizes[2] = 7; },
               "softmax: mask has shape (2, 3, 7), expected (2, 3, 8) (the shape of x), broadcast "
               "by strides of 0");
  expect_error([](Forward& a) { a.mask.strides[2] = 2; },
               "softmax: mask has a last stride of 2, expected 1 or 0");
  expect_error(
      [](Forward& a) {
        a.mask.device = {DeviceType::kCuda, 0};
      },
      "softmax: mask is on cuda:0, expected cpu:0");
  expect_error(
      [](Forward& a) {
        a.y.strides[1] = 4;
        a.y.strides[0] = 12;
      },
      "softmax: y has overlapping rows (row stride 4), expected at least 8");
  expect_error([](Forward& a) { a.x.data = a.y.data; },
               "softmax: y overlaps x, expected memory of its own");
}

TEST(SoftmaxErrors, causal_needs_two_dimensions) {
  float data[4] = {};
  const TensorView row = TensorView::contiguous(data, DType::kFloat32, {}, {4});
  try {
    softmax_forward({}, {.x = row, .y = row, .causal = true});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "softmax: x has 1 dimensions, expected at least 2 (causal)");
  }
}

}  // namespace
}  // namespace transformer_kernels::testing
