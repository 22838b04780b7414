// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/list.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend_test.h"
#include "error_of.h"
#include "linear/product_reference.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

constexpr std::int64_t kRows = 24, kTerms = 40;
constexpr std::array<std::int64_t, 3> kCols{32, 8, 16};

// Three layers on one input; their results, and gradients of these, are columns of one tensor.
struct Lists {
  explicit Lists(Backend& backend, DType dtype)
      : x_values(random_normal(kRows * kTerms, dtype)),
        x(backend, dtype, kRows, kTerms, x_values, {0, 8}),
        side_by_side(backend, dtype, kRows, 56),
        dx(backend, dtype, kRows, kTerms) {
    for (const std::int64_t cols : kCols) {
      weight_values.push_back(random_normal(cols * kTerms, dtype));
      bias_values.push_back(random_normal(cols, dtype));
      dy_values.push_back(random_normal(kRows * cols, dtype));
      hold(backend, dtype, cols, kTerms, weight_values.back(), weights);
      hold(backend, dtype, kRows, cols, dy_values.back(), dys);
      hold(backend, dtype, 1, cols, bias_values.back(), biases);
      hold(backend, dtype, cols, kTerms, {}, dweights);
      hold(backend, dtype, 1, cols, {}, dbiases);
      biases.back() = memory[memory.size() - 3]->vector();
      dbiases.back() = memory.back()->vector();
      ys.push_back(side_by_side.view());
      ys.back().sizes[1] = cols;
      ys.back().data = static_cast<char*>(ys.back().data) + at * size_of(dtype);
      at += cols;
    }
  }
  LinearListForward forward() const {
    return {.x = x.view(), .weights = weights, .biases = biases, .ys = ys};
  }
  LinearListBackward backward() const {
    return {.dys = dys,
            .x = x.view(),
            .weights = weights,
            .dx = dx.view(),
            .dweights = dweights,
            .dbiases = dbiases};
  }
  Values dweight(std::size_t i) { return memory[5 * i + 3]->values(); }
  Values dbias(std::size_t i) { return memory[5 * i + 4]->values(); }
  bool untouched() {
    bool all = side_by_side.untouched() && dx.untouched();
    for (std::size_t i = 0; i < kCols.size(); ++i) {
      all &= memory[5 * i + 3]->untouched() && memory[5 * i + 4]->untouched();
    }
    return all;
  }

  Values x_values;
  std::vector<Values> weight_values, bias_values, dy_values;
  TestTensor x, side_by_side, dx;
  std::vector<std::unique_ptr<TestTensor>> memory;  // five tensors a layer
  std::vector<TensorView> weights, biases, ys, dys, dweights, dbiases;

 private:
  void hold(Backend& backend, DType dtype, std::int64_t rows, std::int64_t cols,
            const Values& values, std::vector<TensorView>& list) {
    memory.push_back(values.empty()
                         ? std::make_unique<TestTensor>(backend, dtype, rows, cols)
                         : std::make_unique<TestTensor>(backend, dtype, rows, cols, values));
    list.push_back(memory.back()->view());
  }
  std::int64_t at = 0;
};

class LinearList : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(on, LinearList, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(LinearList, results_are_those_of_each_layer) {
  Lists lists(backend(), dtype());
  linear_list_forward(backend().context(), lists.forward());
  const Values all = lists.side_by_side.values();
  std::int64_t first = 0;
  for (std::size_t i = 0; i < kCols.size(); ++i) {
    Values got;
    for (std::int64_t at = 0; at < kRows * kCols[i]; ++at) {
      got.push_back(all[at / kCols[i] * 56 + first + at % kCols[i]]);
    }
    expect_close(dtype(), got,
                 product(kRows, kCols[i], kTerms, lists.x_values, {kTerms, 1},
                         lists.weight_values[i], {kTerms, 1}, lists.bias_values[i]));
    first += kCols[i];
  }
}

// dx is rounded after each layer: each may be off by a rounding of what is summed until then.
TEST_P(LinearList, gradients_are_sums_over_the_layers) {
  for (const std::size_t absent : {3, 0, 1}) {
    Lists lists(backend(), dtype());
    if (absent < kCols.size()) lists.dys[absent] = {};
    linear_list_backward(backend().context(), lists.backward());
    Sums dx{Values(kRows * kTerms), Values(kRows * kTerms)};
    Values roundings(kRows * kTerms);
    for (std::size_t i = 0; i < kCols.size(); ++i) {
      if (i == absent) {
        EXPECT_EQ(lists.dweight(i), Values(kCols[i] * kTerms, 0.0));
        EXPECT_EQ(lists.dbias(i), Values(kCols[i], 0.0));
        continue;
      }
      const Values& dy = lists.dy_values[i];
      const Sums of_layer =
          product(kRows, kTerms, kCols[i], dy, {kCols[i], 1}, lists.weight_values[i], {1, kTerms});
      for (std::size_t at = 0; at < roundings.size(); ++at) {
        dx.sum[at] += of_layer.sum[at];
        dx.size[at] += of_layer.size[at];
        roundings[at] +=
            2 * unit_roundoff(dtype()) * (std::abs(dx.sum[at]) + std::abs(of_layer.sum[at]));
      }
      expect_close(
          dtype(), lists.dweight(i),
          product(kCols[i], kTerms, kRows, dy, {1, kCols[i]}, lists.x_values, {1, kTerms}));
      expect_close(dtype(), lists.dbias(i),
                   product(1, kCols[i], kRows, Values(kRows, 1), {0, 1}, dy, {1, kCols[i]}));
    }
    expect_close(dtype(), lists.dx.values(), dx, roundings);
  }
}

TEST_P(LinearList, gradients_are_zero_where_none_arrives) {
  Lists lists(backend(), dtype());
  lists.dys.assign(kCols.size(), TensorView{});
  linear_list_backward(backend().context(), lists.backward());
  EXPECT_EQ(lists.dx.values(), Values(kRows * kTerms, 0.0));
  EXPECT_EQ(lists.dweight(2), Values(kCols[2] * kTerms, 0.0));
}

TEST(LinearListErrors, of_the_last_layer_come_before_anything_is_written) {
  const auto expect_error = [](auto&& spoil, const std::string& expected) {
    Lists lists(*cpu_backend(), DType::kFloat32);
    spoil(lists);
    EXPECT_EQ(error_of([&] {
                linear_list_forward({}, lists.forward());
                linear_list_backward({}, lists.backward());
              }),
              expected);
    EXPECT_TRUE(lists.untouched());
  };
  expect_error([](auto& l) { l.ys.pop_back(); },
               "linear_list: ys has 2 entries, expected 3 (as many as weights)");
  expect_error([](auto& l) { l.biases.pop_back(); },
               "linear_list: biases has 2 entries, expected 3 (as many as weights)");
  expect_error([](auto& l) { l.ys[2].data = l.ys[0].data; },
               "linear_list: ys overlaps ys, expected memory of its own");
  expect_error([](auto& l) { l.weights[2].dtype = DType::kFloat64; },
               "linear: weight is float64, expected float32 (the dtype of x)");
}

}  // namespace
}  // namespace transformer_kernels::testing
