// SPDX-License-Identifier: MIT
#include "transformer_kernels/embedding/embedding.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "backend_test.h"
#include "parallel_hooks.h"
#include "test_tensor.h"
#include "transformer_kernels/error.h"
#include "transformer_kernels/index_error.h"

namespace transformer_kernels::testing {
namespace {

using Numbers = std::vector<std::int64_t>;

class EmbeddingOp : public BackendTest {};

INSTANTIATE_TEST_SUITE_P(on, EmbeddingOp, all_backends_and_dtypes(), name_of_backend_test);

// Few rows have most of them.
Numbers draw_indices(std::int64_t count, std::int64_t rows) {
  std::uniform_real_distribution<double> uniform(0, 1);
  Numbers numbers(count);
  for (std::int64_t& number : numbers) {
    number = static_cast<std::int64_t>(std::pow(uniform(random_engine()), 4) *
                                       static_cast<double>(rows));
  }
  return numbers;
}

// The sum of dy over the tokens of each row, and the sum of the sizes of its terms.
struct Gradient {
  Values sum, size;
};
Gradient reference_gradient(const Values& dy, const Numbers& indices, std::int64_t rows,
                            std::int64_t cols, std::int64_t padding_idx, bool by_frequency) {
  std::vector<long double> sum(rows * cols), size(rows * cols), count(rows);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] == padding_idx) continue;
    count[indices[i]] += 1;
    for (std::int64_t c = 0; c < cols; ++c) {
      sum[indices[i] * cols + c] += dy[i * cols + c];
      size[indices[i] * cols + c] += std::abs(dy[i * cols + c]);
    }
  }
  Gradient out{Values(rows * cols), Values(rows * cols)};
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const long double divisor = by_frequency && count[i / cols] > 0 ? count[i / cols] : 1;
    out.sum[i] = static_cast<double>(sum[i] / divisor);
    out.size[i] = static_cast<double>(size[i] / divisor);
  }
  return out;
}

// One rounding to dtype, and those of a sum that is kept wide.
void expect_close(DType dtype, const Values& got, const Gradient& expected) {
  const double wide = unit_roundoff(dtype == DType::kFloat64 ? dtype : DType::kFloat32);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = unit_roundoff(dtype) * std::abs(expected.sum[i]) * 1.01 +
                         40 * wide * expected.size[i] + 1e-7 * unit_roundoff(dtype);
    ASSERT_NEAR(got[i], expected.sum[i], error) << "element " << i;
  }
}

struct Case {
  std::int64_t tokens, rows, cols;
  Layout layout;
};
constexpr Case kCases[] = {{1, 1, 1, {}},         {0, 5, 8, {}},     {300, 40, 33, {}},
                           {300, 40, 24, {1, 3}}, {37, 500, 64, {}}, {700, 3, 72, {0, 8}},
                           {5000, 7, 16, {}},     {64, 9, 2049, {}}, {20000, 4, 8, {}}};

TEST_P(EmbeddingOp, matches_the_reference) {
  for (const auto& [tokens, rows, cols, layout] : kCases) {
    for (const bool wide_indices : {false, true}) {
      SCOPED_TRACE(std::to_string(tokens) + 'x' + std::to_string(cols));
      const Numbers numbers = draw_indices(tokens, rows);
      const std::vector<std::int32_t> narrow(numbers.begin(), numbers.end());
      const DeviceArray<std::int64_t> long_indices(backend(), numbers.data(), numbers.size());
      const DeviceArray<std::int32_t> int_indices(backend(), narrow.data(), narrow.size());
      const TensorView indices =
          wide_indices ? long_indices.vector(DType::kInt64) : int_indices.vector(DType::kInt32);
      const Values weight_values = random_normal(rows * cols, dtype());
      const Values dy_values = random_normal(tokens * cols, dtype());
      const TestTensor weight(backend(), dtype(), rows, cols, weight_values, layout);
      const TestTensor dy(backend(), dtype(), tokens, cols, dy_values, layout);
      TestTensor y(backend(), dtype(), tokens, cols, layout);
      embedding_forward(backend().context(),
                        {.weight = weight.view(), .indices = indices, .y = y.view()});
      Values expected;
      for (const std::int64_t row : numbers) {
        expected.insert(expected.end(), weight_values.begin() + row * cols,
                        weight_values.begin() + (row + 1) * cols);
      }
      EXPECT_EQ(y.values(), expected);
      EXPECT_TRUE(y.surroundings_intact());
      for (const bool by_frequency : {false, true}) {
        TestTensor dweight(backend(), dtype(), rows, cols, layout);
        const std::int64_t padding = by_frequency ? rows - 1 : -1;
        embedding_backward(backend().context(), {.dy = dy.view(),
                                                 .indices = indices,
                                                 .padding_idx = padding,
                                                 .scale_grad_by_freq = by_frequency,
                                                 .dweight = dweight.view()});
        expect_close(dtype(), dweight.values(),
                     reference_gradient(dy_values, numbers, rows, cols, padding, by_frequency));
        EXPECT_TRUE(dweight.surroundings_intact());
      }
    }
  }
}

TEST_P(EmbeddingOp, sum_of_three_tables) {
  constexpr std::int64_t kBatch = 5;
  constexpr std::int64_t kTime = 60;
  constexpr std::int64_t kCols = 40;
  const Numbers tokens = draw_indices(kBatch * kTime, 30);
  const Numbers types = draw_indices(kTime, 2);  // of each sequence
  const DeviceArray<std::int64_t> token_array(backend(), tokens.data(), tokens.size());
  const DeviceArray<std::int64_t> type_array(backend(), types.data(), types.size());
  const auto matrix = [&](const DeviceArray<std::int64_t>& array, std::int64_t rows) {
    TensorView view = array.vector(DType::kInt64);
    return TensorView::contiguous(view.data, DType::kInt64, view.device, {rows, kTime});
  };
  const Values values[] = {random_normal(30 * kCols, dtype()), random_normal(70 * kCols, dtype()),
                           random_normal(2 * kCols, dtype())};
  const TestTensor weight(backend(), dtype(), 30, kCols, values[0]);
  const TestTensor position_weight(backend(), dtype(), 70, kCols, values[1], {.gap = 8});
  const TestTensor type_weight(backend(), dtype(), 2, kCols, values[2]);
  TestTensor y(backend(), dtype(), kBatch * kTime, kCols);
  const auto rows_of = [&](const TensorView& view) {
    return TensorView::contiguous(view.data, dtype(), view.device, {kBatch, kTime, kCols});
  };
  embedding_add_forward(backend().context(), {.weight = weight.view(),
                                              .tokens = matrix(token_array, kBatch),
                                              .position_weight = position_weight.view(),
                                              .type_weight = type_weight.view(),
                                              .types = matrix(type_array, 1),
                                              .first_position = 7,
                                              .y = rows_of(y.view())});
  const Values got = y.values();
  Numbers positions, all_types;
  for (std::int64_t i = 0; i < kBatch * kTime; ++i) {
    positions.push_back(7 + i % kTime);
    all_types.push_back(types[i % kTime]);
    for (std::int64_t c = 0; c < kCols; ++c) {
      const double exact = values[0][tokens[i] * kCols + c] + values[1][positions[i] * kCols + c] +
                           values[2][all_types[i] * kCols + c];
      const double error =
          unit_roundoff(dtype()) * std::abs(exact) * 1.01 +
          16 * unit_roundoff(dtype() == DType::kFloat64 ? dtype() : DType::kFloat32);
      ASSERT_NEAR(got[i * kCols + c], exact, error) << i << ' ' << c;
    }
  }
  const Values dy_values = random_normal(kBatch * kTime * kCols, dtype());
  const TestTensor dy(backend(), dtype(), kBatch * kTime, kCols, dy_values);
  TestTensor dweight(backend(), dtype(), 30, kCols), dposition(backend(), dtype(), 70, kCols),
      dtype_weight(backend(), dtype(), 2, kCols);
  embedding_add_backward(backend().context(), {.dy = rows_of(dy.view()),
                                               .tokens = matrix(token_array, kBatch),
                                               .types = matrix(type_array, 1),
                                               .first_position = 7,
                                               .padding_idx = 0,
                                               .dweight = dweight.view(),
                                               .dposition_weight = dposition.view(),
                                               .dtype_weight = dtype_weight.view()});
  expect_close(dtype(), dweight.values(),
               reference_gradient(dy_values, tokens, 30, kCols, 0, false));
  expect_close(dtype(), dposition.values(),
               reference_gradient(dy_values, positions, 70, kCols, -1, false));
  expect_close(dtype(), dtype_weight.values(),
               reference_gradient(dy_values, all_types, 2, kCols, -1, false));
}

TEST_P(EmbeddingOp, repeatable) {
  const Numbers numbers = draw_indices(6000, 20);
  const DeviceArray<std::int64_t> indices(backend(), numbers.data(), numbers.size());
  const TestTensor dy(backend(), dtype(), 6000, 96, random_normal(6000 * 96, dtype()));
  std::optional<std::vector<std::uint8_t>> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    TestTensor dweight(backend(), dtype(), 20, 96);
    embedding_backward(
        context,
        {.dy = dy.view(), .indices = indices.vector(DType::kInt64), .dweight = dweight.view()});
    if (!first) first = dweight.bytes();
    EXPECT_EQ(dweight.bytes(), *first);
  }
}

TEST_P(EmbeddingOp, index_out_of_range) {
  const Numbers numbers = {2, 5, 0, -1};
  const DeviceArray<std::int64_t> indices(backend(), numbers.data(), numbers.size());
  const TestTensor weight(backend(), dtype(), 5, 40, Values(200, 1.0));
  TestTensor y(backend(), dtype(), 4, 40), dweight(backend(), dtype(), 5, 40);
  const EmbeddingForward forward{
      .weight = weight.view(), .indices = indices.vector(DType::kInt64), .y = y.view()};
  const TestTensor dy(backend(), dtype(), 4, 40, Values(160, 3.0));
  const EmbeddingBackward backward{
      .dy = dy.view(), .indices = indices.vector(DType::kInt64), .dweight = dweight.view()};
  if (!is_on_cuda(backend())) {
    try {
      embedding_forward(backend().context(), forward);
      FAIL() << "accepted";
    } catch (const IndexError& error) {
      EXPECT_STREQ(error.what(),
                   "embedding: indices holds 5, expected a row of weight, which has 5");
    }
    EXPECT_THROW(embedding_backward(backend().context(), backward), Error);
    EXPECT_TRUE(y.untouched() && dweight.untouched());
    return;
  }
  embedding_forward(backend().context(), forward);
  embedding_backward(backend().context(), backward);
  const Values got = y.values();
  const Values sums = dweight.values();
  for (std::int64_t i = 0; i < 160; ++i) EXPECT_EQ(std::isnan(got[i]), i / 40 % 2 == 1);
  for (std::int64_t i = 0; i < 200; ++i) {
    EXPECT_EQ(sums[i], i / 40 == 0 || i / 40 == 2 ? 3.0 : 0.0);
  }
}

void expect_error(auto&& spoil, const std::string& expected) {
  float data[64] = {}, result[64] = {};
  std::int64_t numbers[6] = {};
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    return TensorView::contiguous(data, DType::kFloat32, {}, {rows, cols});
  };
  EmbeddingAddForward a{.weight = matrix(4, 8),
                        .tokens = TensorView::contiguous(numbers, DType::kInt64, {}, {2, 3}),
                        .position_weight = matrix(3, 8),
                        .types = TensorView::contiguous(numbers, DType::kInt64, {}, {3}),
                        .y = TensorView::contiguous(result, DType::kFloat32, {}, {2, 3, 8})};
  a.type_weight = matrix(2, 8);
  spoil(a);
  try {
    embedding_add_forward({}, a);
    ADD_FAILURE() << "accepted, expected: " << expected;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), expected);
  }
}

TEST(EmbeddingErrors, have_exact_words) {
  using Forward = EmbeddingAddForward;
  expect_error([](Forward& a) { a.weight = {}; }, "embedding_add: weight is missing");
  expect_error([](Forward& a) { a.weight.rank = 1; },
               "embedding_add: weight has 1 dimensions, expected 2");
  expect_error([](Forward& a) { a.weight.sizes[0] = 3000000000; },
               "embedding_add: weight has 3000000000 rows, expected at most 2147483648");
  expect_error([](Forward& a) { a.tokens.dtype = DType::kInt8; },
               "embedding_add: tokens is int8, expected int32 or int64");
  expect_error([](Forward& a) { a.tokens.strides[1] = 2; },
               "embedding_add: tokens has gaps, expected contiguous memory");
  expect_error([](Forward& a) { a.position_weight.dtype = DType::kFloat16; },
               "embedding_add: position_weight is float16, expected float32 (the dtype of weight)");
  expect_error([](Forward& a) { a.position_weight.sizes[1] = 7; },
               "embedding_add: position_weight has 7 columns, expected 8 (the last dimension of "
               "weight)");
  expect_error([](Forward& a) { a.first_position = 1; },
               "embedding_add: position_weight has 3 rows, expected at least 4 (first_position and "
               "the last dimension of tokens)");
  expect_error([](Forward& a) { a.first_position = -1; },
               "embedding_add: first_position is -1, expected 0 or more");
  expect_error([](Forward& a) { a.type_weight = {}; },
               "embedding_add: type_weight is missing, expected it beside types");
  expect_error([](Forward& a) { a.types.sizes[0] = 2; },
               "embedding_add: types has shape (2,), expected (2, 3) (the shape of tokens) or its "
               "last dimensions");
  expect_error([](Forward& a) { a.y.sizes[2] = 7; },
               "embedding_add: y has shape (2, 3, 7), expected that of tokens, (2, 3), with 8 "
               "behind it");
  expect_error([](Forward& a) { a.y.data = a.type_weight.data; },
               "embedding_add: y overlaps weight, expected memory of its own");
}

}  // namespace
}  // namespace transformer_kernels::testing
