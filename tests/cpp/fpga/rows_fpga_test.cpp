// SPDX-License-Identifier: MIT
// softmax_forward() and fpga::linear_forward() of a context with an array.
#include <gtest/gtest.h>

#include "fpga/array.h"
#include "fpga/array_cases.h"
#include "transformer_kernels/error.h"
#include "transformer_kernels/fpga/array.h"
#include "transformer_kernels/fpga/linear.h"
#include "transformer_kernels/softmax/softmax.h"

namespace transformer_kernels::testing {
namespace {

using Floats = std::vector<float>;

TensorView view(Floats& data, std::initializer_list<std::int64_t> shape) {
  return TensorView::contiguous(data.data(), DType::kFloat32, {}, shape);
}

template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// ---- softmax ------------------------------------------------------------------------------------

// Causal rows see up to their own place from the right.
Values softmax_of(const Floats& x, std::int64_t rows, std::int64_t cols, double scale,
                  bool causal) {
  Values out(x.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t seen =
        causal ? std::clamp<std::int64_t>(row + 1 + cols - rows, 0, cols) : cols;
    double sum = 0;
    for (std::int64_t col = 0; col < seen; ++col) sum += std::exp(scale * x[row * cols + col]);
    for (std::int64_t col = 0; col < seen; ++col) {
      out[row * cols + col] = std::exp(scale * x[row * cols + col]) / sum;
    }
  }
  return out;
}

TEST(FpgaSoftmax, every_set_that_has_it_is_near_the_formula) {
  for (const std::string& name : fpga::set_names()) {
    SCOPED_TRACE(name);
    fpga::Array array(name);
    if (!array.set().softmax) continue;
    for (bool causal : {false, true}) {
      for (const std::int64_t cols : {1, 5, 300}) {
        Floats x = ArrayCase::fill(9 * cols, 3);
        Floats y(x.size(), 77.0F);
        softmax_forward(
            {.array = &array},
            {.x = view(x, {9, cols}), .y = view(y, {9, cols}), .scale = 2, .causal = causal});
        const Values wanted = softmax_of(x, 9, cols, 2, causal);
        EXPECT_LE(relative_error(y, wanted), 5e-3);
        for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], wanted[i], 1e-3);
      }
    }
  }
}

TEST(FpgaSoftmax, refusals_leave_the_result_alone) {
  fpga::Array array("r2c4d64n256");
  fpga::Array without("r1c2d16n128");
  Floats x = ArrayCase::fill(3 * 9000, 0);
  Floats y(x.size(), 77.0F);
  const auto refused = [&](fpga::Array& on, const SoftmaxForward& a) {
    const std::string message = message_of([&] { softmax_forward({.array = &on}, a); });
    for (float value : y) EXPECT_EQ(value, 77.0F);
    return message;
  };
  const TensorView in = view(x, {3, 100}), out = view(y, {3, 100});
  EXPECT_EQ(refused(without, {.x = in, .y = out}),
            "softmax: array is r1c2d16n128, expected one with SOFTMAX (it was built without)");
  EXPECT_EQ(refused(array, {.x = in, .y = out, .log = true}),
            "softmax: log is true, expected false (the array gives no logarithms)");
  EXPECT_EQ(refused(array, {.x = in, .mask = in, .y = out}),
            "softmax: mask is given, expected none, or causal (the array reads scores alone)");
  EXPECT_EQ(refused(array, {.x = view(x, {3, 9000}), .y = view(y, {3, 9000})}),
            "softmax: x has rows of 9000, expected at most 8191 (the array r2c4d64n256)");
  x[250] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refused(array, {.x = in, .y = out}),
            "softmax: x has elements that are NaN or +inf, expected finite ones (they become"
            " int16)");
}

// ---- linear -------------------------------------------------------------------------------------

struct LinearCase {
  LinearCase(std::int64_t m, std::int64_t k, std::int64_t n)
      : rows(m),
        cols(k),
        outputs(n),
        x(ArrayCase::fill(m * k, 0)),
        weight(ArrayCase::fill(n * k, 0)),
        bias(ArrayCase::fill(n, 0)),
        y(m * n, 77.0F) {}

  fpga::LinearForward arguments() {
    return {.x = view(x, {rows, cols}),
            .weight = view(weight, {outputs, cols}),
            .bias = view(bias, {outputs}),
            .y = view(y, {rows, outputs})};
  }

  Values reference() const {
    Values out(y.size());
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t n = 0; n < outputs; ++n) {
        double sum = bias[n];
        for (std::int64_t k = 0; k < cols; ++k) {
          sum += double{x[i * cols + k]} * weight[n * cols + k];
        }
        out[i * outputs + n] = sum;
      }
    }
    return out;
  }

  std::int64_t rows, cols, outputs;
  Floats x, weight, bias, y;
};

// Contractions beyond the head dim, outputs beyond the buffers, and neither a multiple.
TEST(FpgaLinear, parts_are_added_and_laid_side_by_side) {
  fpga::Array array("r2c4d64n256");
  const std::int64_t sizes[][3] = {{1, 1, 1}, {5, 64, 256}, {7, 200, 300}, {3, 63, 257}, {4, 0, 3}};
  for (const auto& [m, k, n] : sizes) {
    LinearCase c(m, k, n);
    fpga::linear_forward({.array = &array}, c.arguments());
    EXPECT_LE(relative_error(c.y, c.reference()), 4e-2) << m << "x" << k << "x" << n;
  }
  EXPECT_EQ(array.counters().useful, 1U + 5U * 64 * 256 + 7U * 200 * 300 + 3U * 63 * 257);
}

// Integers up to 127 are what they become.
TEST(FpgaLinear, small_integers_are_exact) {
  fpga::Array array("r8c8d64n1024");
  LinearCase c(9, 150, 40);
  for (Floats* values : {&c.x, &c.weight}) {
    for (float& value : *values) value = std::round(value * 20);
    for (std::size_t i = 0; i < values->size(); i += 150) (*values)[i] = 127;
  }
  c.bias.assign(c.bias.size(), 0);
  fpga::linear_forward({.array = &array}, c.arguments());
  const Values wanted = c.reference();
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(c.y[i], wanted[i]);
}

TEST(FpgaLinear, refusals_leave_the_result_alone) {
  fpga::Array array("r2c4d64n256");
  fpga::Array without("r1c2d16n128");
  LinearCase c(2, 8, 3);
  const auto refused = [&](Context context, const fpga::LinearForward& a) {
    const std::string message = message_of([&] { fpga::linear_forward(context, a); });
    for (float value : c.y) EXPECT_EQ(value, 77.0F);
    return message;
  };
  EXPECT_EQ(refused({}, c.arguments()), "linear: array is missing, expected one in the context");
  EXPECT_EQ(refused({.array = &without}, c.arguments()),
            "linear: array is r1c2d16n128, expected one with MATMUL (it was built without)");
  fpga::LinearForward a = c.arguments();
  a.weight = view(c.weight, {3, 7});
  EXPECT_EQ(refused({.array = &array}, a),
            "linear: weight has shape (3, 7), expected (3, 8) (the last dimension of x)");
  c.weight[4] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(refused({.array = &array}, c.arguments()),
            "linear: weight has elements that are NaN or infinite, expected finite ones (they"
            " become int8)");
}

}  // namespace
}  // namespace transformer_kernels::testing
