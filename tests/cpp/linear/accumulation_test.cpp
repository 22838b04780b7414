// SPDX-License-Identifier: MIT
// Gradients that are added to what their tensors hold, and gradients of weights in float32 beside
// operands of 16 bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "backend_test.h"
#include "error_of.h"
#include "linear/product_reference.h"
#include "test_tensor.h"
#include "transformer_kernels/linear/linear.h"

namespace transformer_kernels::testing {
namespace {

struct Sizes {
  std::int64_t rows, terms, cols;
  Layout layout;
};

class LinearAccumulation : public BackendTest {
 protected:
  static DType wide() { return size_of(dtype()) == 2 ? DType::kFloat32 : dtype(); }
  void expect_added_to(const Values& old, DType dtype, const Values& got, const Sums& sums) {
    const bool rounds = is_on_cuda(backend());
    expect_close(dtype, got, added(old, sums), rounds ? rounding_before(dtype, sums) : Values{});
  }
  // Long under a CPU's checkers, and for its reference.
  static bool is_left_to_cards(const Sizes& s) { return !is_on_cuda(backend()) && s.rows > 1000; }
};

INSTANTIATE_TEST_SUITE_P(on, LinearAccumulation, all_backends_and_dtypes(), name_of_backend_test);

// One tile; strided and odd; partial blocks; parts of the terms of dweight. Few rows of dweight, of
// its transpose, and of dx. For CUDA's engines: aligned rows, split terms, few aligned rows.
constexpr Sizes kSizes[] = {{1, 1, 1, {}},       {7, 5, 3, {1, 3}},   {100, 260, 195, {}},
                            {513, 33, 70, {8}},  {40, 64, 5, {0, 3}}, {600, 3, 40, {}},
                            {16, 72, 40, {}},    {136, 72, 200, {}},  {2056, 264, 72, {}},
                            {2056, 72, 264, {}}, {64, 120, 1, {}},    {40, 64, 77, {}}};

// One layer's operands, and what its gradients are.
struct Layer {
  Backend& backend;
  DType dtype;
  Sizes s;
  Values x_values = random_normal(s.rows * s.terms, dtype);
  Values weight_values = random_normal(s.cols * s.terms, dtype);
  Values dy_values = random_normal(s.rows * s.cols, dtype);
  TestTensor x{backend, dtype, s.rows, s.terms, x_values, s.layout};
  TestTensor weight{backend, dtype, s.cols, s.terms, weight_values, s.layout};
  TestTensor dy{backend, dtype, s.rows, s.cols, dy_values, s.layout};

  LinearBackward call() const { return {.dy = dy.view(), .x = x.view(), .weight = weight.view()}; }
  Sums dx() const {
    return product(s.rows, s.terms, s.cols, dy_values, {s.cols, 1}, weight_values, {1, s.terms});
  }
  Sums dweight() const {
    return product(s.cols, s.terms, s.rows, dy_values, {1, s.cols}, x_values, {1, s.terms});
  }
  Sums dbias() const {
    return product(1, s.cols, s.rows, Values(s.rows, 1), {0, 1}, dy_values, {1, s.cols});
  }
};

std::string name_of(const Sizes& s) {
  return std::to_string(s.rows) + 'x' + std::to_string(s.terms) + 'x' + std::to_string(s.cols);
}

TEST_P(LinearAccumulation, adds_to_gradients_of_the_input_and_the_bias) {
  for (const Sizes& s : kSizes) {
    if (is_left_to_cards(s)) continue;
    SCOPED_TRACE(name_of(s));
    const Layer layer{backend(), dtype(), s};
    for (const DType out : {dtype(), wide()}) {
      const Values old_dx = random_normal(s.rows * s.terms, dtype());
      const Values old_dbias = random_normal(s.cols, out);
      TestTensor dx(backend(), dtype(), s.rows, s.terms, old_dx, s.layout);
      TestTensor dbias(backend(), out, 1, s.cols, old_dbias);
      LinearBackward call = layer.call();
      call.dx = dx.view();
      call.dbias = dbias.vector();
      call.accumulate_dx = call.accumulate_dbias = true;
      linear_backward(backend().context(), call);
      expect_added_to(old_dx, dtype(), dx.values(), layer.dx());
      expect_close(out, dbias.values(), added(old_dbias, layer.dbias()));
      EXPECT_TRUE(dx.surroundings_intact());
      EXPECT_TRUE(dbias.surroundings_intact());
    }
  }
}

// The gradient of the weight by rows or by columns, in the dtype of x or wide, written or added.
TEST_P(LinearAccumulation, gradients_of_the_weight_are_rounded_once) {
  for (const Sizes& s : kSizes) {
    if (is_left_to_cards(s)) continue;
    const Layer layer{backend(), dtype(), s};
    const Sums sums = layer.dweight();
    for (const int kind : {0, 1, 2, 3, 4, 5, 6, 7}) {
      SCOPED_TRACE(name_of(s) + " of kind " + std::to_string(kind));
      const bool by_rows = kind & 1, adds = kind & 2;
      const DType out = kind & 4 ? wide() : dtype();
      const Values old = random_normal(s.cols * s.terms, out);
      TestTensor dweight(backend(), out, by_rows ? s.cols : s.terms, by_rows ? s.terms : s.cols,
                         by_rows ? old : by_columns(old, s.cols, s.terms), s.layout);
      LinearBackward call = layer.call();
      call.dweight = by_rows ? dweight.view() : transposed(dweight.view());
      call.accumulate_dweight = adds;
      linear_backward(backend().context(), call);
      const Values got = dweight.values();
      const Values rows = by_rows ? got : by_columns(got, s.terms, s.cols);
      if (adds) {
        expect_added_to(old, out, rows, sums);
      } else {
        expect_close(out, rows, sums);
      }
      EXPECT_TRUE(dweight.surroundings_intact());
    }
  }
}

// Behind an activation the sums are those of dz, which both calls have: what one adds is what the
// other writes.
TEST_P(LinearAccumulation, behind_an_activation_too) {
  constexpr std::int64_t kRows = 136, kTerms = 72, kCols = 200;
  const Layer layer{backend(), dtype(), {kRows, kTerms, kCols, {}}};
  const TestTensor z(backend(), dtype(), kRows, kCols, random_normal(kRows * kCols, dtype()));
  for (const DType out : {dtype(), wide()}) {
    const auto gradients = [&](const Values& old_dweight, const Values& old_dbias, bool adds) {
      TestTensor dweight(backend(), out, kCols, kTerms, old_dweight);
      TestTensor dbias(backend(), out, 1, kCols, old_dbias);
      LinearBackward call = layer.call();
      call.activation = Pointwise::kGelu;
      call.z = z.view();
      call.dweight = dweight.view();
      call.dbias = dbias.vector();
      call.accumulate_dweight = call.accumulate_dbias = adds;
      linear_backward(backend().context(), call);
      return std::array{dweight.values(), dbias.values()};
    };
    const Values old_dweight = random_normal(kCols * kTerms, out);
    const Values old_dbias = random_normal(kCols, out);
    const auto [dweight, dbias] = gradients(old_dweight, old_dbias, false);
    const auto [dweight_sum, dbias_sum] = gradients(old_dweight, old_dbias, true);
    const auto expect_added = [&](const Values& got, const Values& old, const Values& more) {
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double sum = old[i] + more[i];
        const double terms = 40 * unit_roundoff(wide()) * kRows;  // of about 1 each
        ASSERT_NEAR(got[i], sum,
                    1.01 * unit_roundoff(out) * (std::abs(sum) + std::abs(more[i])) + terms)
            << "element " << i;
      }
    };
    expect_added(dweight_sum, old_dweight, dweight);
    expect_added(dbias_sum, old_dbias, dbias);
  }
}

TEST_P(LinearAccumulation, gradient_of_the_bias_at_an_activation) {
  for (const auto& [rows, terms, cols] : {std::array{129, 64, 200}, std::array{5, 33, 57}}) {
    const TestTensor dy(backend(), dtype(), rows, terms, random_normal(rows * terms, dtype()));
    const TestTensor weight(backend(), dtype(), terms, cols,
                            random_normal(terms * cols, dtype(), 0, 0.1));
    const TestTensor z(backend(), dtype(), rows, cols, random_normal(rows * cols, dtype()));
    TestTensor dz(backend(), dtype(), rows, cols);
    const auto dbias = [&](const Values& old, bool adds) {
      TestTensor sums(backend(), wide(), 1, cols, old);
      linear_dact(backend().context(), {.dy = dy.view(),
                                        .weight = weight.view(),
                                        .z = z.view(),
                                        .activation = Pointwise::kGelu,
                                        .dz = dz.view(),
                                        .dbias = sums.vector(),
                                        .accumulate_dbias = adds});
      return sums.values();
    };
    const Values old = random_normal(cols, wide());
    const Values alone = dbias(old, false), sums = dbias(old, true);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const double sum = old[i] + alone[i];
      ASSERT_NEAR(sums[i], sum, 4 * unit_roundoff(wide()) * (std::abs(sum) + rows));
    }
  }
}

TEST_P(LinearAccumulation, a_gradient_of_the_weight_alone_needs_no_weight) {
  const Layer layer{backend(), dtype(), {40, 64, 24, {}}};
  TestTensor dweight(backend(), wide(), 24, 64), dx(backend(), dtype(), 40, 64);
  LinearBackward call = layer.call();
  call.weight = {};
  call.dweight = dweight.view();
  linear_backward(backend().context(), call);
  expect_close(wide(), dweight.values(), layer.dweight());
  call.dx = dx.view();
  EXPECT_EQ(error_of([&] { linear_backward(backend().context(), call); }),
            "linear: weight is missing");
  call.dx = call.dweight = {};
  EXPECT_EQ(error_of([&] { linear_backward(backend().context(), call); }),
            "linear: weight is missing");
}

TEST_P(LinearAccumulation, without_rows_only_a_gradient_that_is_not_added_is_written) {
  const Layer layer{backend(), dtype(), {0, 24, 16, {}}};
  for (const DType out : {dtype(), wide()}) {
    for (const bool adds : {false, true}) {
      const Values old_dweight = random_normal(16 * 24, out), old_dbias = random_normal(16, out);
      TestTensor dweight(backend(), out, 16, 24, old_dweight);
      TestTensor dbias(backend(), out, 1, 16, old_dbias);
      LinearBackward call = layer.call();
      call.dweight = dweight.view();
      call.dbias = dbias.vector();
      call.accumulate_dweight = call.accumulate_dbias = adds;
      linear_backward(backend().context(), call);
      EXPECT_EQ(dweight.values(), adds ? old_dweight : Values(16 * 24, 0));
      EXPECT_EQ(dbias.values(), adds ? old_dbias : Values(16, 0));
    }
  }
}

TEST_P(LinearAccumulation, says_which_dtypes_a_gradient_may_have) {
  const Layer layer{backend(), dtype(), {4, 8, 3, {}}};
  const auto error = [&](DType out) {
    TestTensor dweight(backend(), out, 3, 8);
    LinearBackward call = layer.call();
    call.dweight = dweight.view();
    const std::string message = error_of([&] { linear_backward(backend().context(), call); });
    EXPECT_TRUE(dweight.untouched());
    return message;
  };
  using transformer_kernels::name_of;
  const std::string own = name_of(dtype());
  const std::string expected = own + (size_of(dtype()) == 2 ? " or float32" : "");
  for (const DType out : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (out == dtype() || out == wide()) continue;
    EXPECT_EQ(error(out), "linear: dweight is " + std::string(name_of(out)) + ", expected " +
                              expected + " (the dtype of x)");
  }
}

}  // namespace
}  // namespace transformer_kernels::testing
