// SPDX-License-Identifier: MIT
// cuBLASLt as an engine: the description of a product that it gets, on any machine, and its results
// on CUDA.
#ifdef TFK_WITH_CUDA

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>

#include "backend_test.h"
#include "linear/cublaslt/column_product.h"
#include "linear/stored_matrix.h"
#include "transformer_kernels/pointwise/pointwise.h"

namespace transformer_kernels::testing {
namespace {

using cuda::Factor;

using Sizes = ProductSizes;

// ------------------------------------------------- what cuBLASLt is told, without it

double element(const Factor& factor, std::int64_t row, std::int64_t col) {
  if (factor.is_transposed) std::swap(row, col);
  return static_cast<const double*>(factor.data)[row + col * factor.columns.step];
}

// Multiplies as cuBLASLt does, with all matrices by columns.
void multiply_columns(const cuda::ColumnProduct& p) {
  const auto& [rows, terms, step] = p.left.columns;
  const std::int64_t count = p.left.is_transposed ? rows : terms;
  for (std::int64_t row = 0; row < p.columns.rows; ++row) {
    for (std::int64_t col = 0; col < p.columns.cols; ++col) {
      double sum = 0;
      for (std::int64_t k = 0; k < count; ++k)
        sum += element(p.left, row, k) * element(p.right, k, col);
      static_cast<double*>(p.out)[row + col * p.columns.step] = sum;
    }
  }
}

TEST(ColumnProduct, multiplies_matrices_of_every_order) {
  constexpr DType kDouble = DType::kFloat64;
  Backend& cpu = *cpu_backend();
  for (const Sizes& s : {Sizes{5, 7, 3}, Sizes{1, 4, 6}, Sizes{6, 4, 1}, Sizes{4, 1, 5}}) {
    const Values a_values = random_normal(s.rows * s.terms, kDouble);
    const Values b_values = random_normal(s.terms * s.cols, kDouble);
    const Sums expected =
        product(s.rows, s.cols, s.terms, a_values, {s.terms, 1}, b_values, {1, s.cols});
    for (const int orders : {0, 1, 2, 3, 4, 5, 6, 7}) {
      SCOPED_TRACE(name_of(s) + " of orders " + std::to_string(orders));
      const Stored a(cpu, kDouble, s.rows, s.terms, a_values, orders & 1, {1, 3});
      const Stored b(cpu, kDouble, s.terms, s.cols, b_values, orders & 2, {0, 2});
      const bool out_by_rows = orders & 4;
      TestTensor out(cpu, kDouble, out_by_rows ? s.rows : s.cols, out_by_rows ? s.cols : s.rows,
                     Layout{2, 1});
      const auto found = cuda::column_product({.op = "probe",
                                               .dtype = kDouble,
                                               .rows = s.rows,
                                               .cols = s.cols,
                                               .terms = s.terms,
                                               .a = a.matrix(),
                                               .b = b.matrix(),
                                               .out = matrix_in(out, out_by_rows)});
      ASSERT_TRUE(found.has_value());
      EXPECT_GE(found->left.columns.step, found->left.columns.rows);
      EXPECT_GE(found->right.columns.step, found->right.columns.rows);
      EXPECT_GE(found->columns.step, found->columns.rows);
      EXPECT_TRUE(found->is_transposed || !out_by_rows);
      multiply_columns(*found);
      const Values values = out.values();
      expect_close(kDouble, out_by_rows ? values : by_columns(values, s.cols, s.rows), expected);
      EXPECT_TRUE(out.surroundings_intact());
    }
  }
}

// A step over a single row or column, of whatever size, is none.
TEST(ColumnProduct, steps_at_least_over_what_lies_together) {
  double numbers[64] = {};
  const auto found = [&](const Matrix& a) {
    return cuda::column_product({.op = "probe",
                                 .dtype = DType::kFloat64,
                                 .rows = 1,
                                 .cols = 4,
                                 .terms = 5,
                                 .a = a,
                                 .b = {numbers, 4, 1},
                                 .out = {numbers, 0, 1}});
  };
  const auto together = found({numbers, 0, 1}), apart = found({numbers, 7, 3});
  ASSERT_TRUE(together && apart);
  EXPECT_EQ(together->right.columns, (cuda::Columns{5, 1, 5}));
  EXPECT_EQ(together->columns, (cuda::Columns{4, 1, 4}));
  EXPECT_EQ(apart->right.columns, (cuda::Columns{1, 5, 3}));
  EXPECT_TRUE(apart->right.is_transposed);
}

TEST(ColumnProduct, refuses_what_is_neither_by_rows_nor_by_columns) {
  double numbers[64] = {};
  const auto found = [&](const Matrix& a) {
    return cuda::column_product({.op = "probe",
                                 .dtype = DType::kFloat64,
                                 .rows = 4,
                                 .cols = 4,
                                 .terms = 4,
                                 .a = a,
                                 .b = {numbers, 4, 1},
                                 .out = {numbers, 4, 1}})
        .has_value();
  };
  EXPECT_TRUE(found({numbers, 4, 1}));
  EXPECT_TRUE(found({numbers, 1, 4}));
  EXPECT_FALSE(found({numbers, 8, 2}));
  EXPECT_FALSE(found({numbers, 0, 1}));  // one row, four times
  EXPECT_FALSE(found({numbers, 3, 1}));
}

// ------------------------------------------------- its results

class CublasLtProduct : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_backend() == nullptr) GTEST_SKIP() << "no CUDA device";
    const TestTensor one(backend(), dtype(), 1, 1, Values{1});
    const Matrix number = matrix_in(one);
    const Product p = product_of({1, 1, 1}, number, number, number);
    const char* const refusal = cuda::cublaslt_refusal(backend().context(), p);
    if (refusal != nullptr && refusal == std::string("cuBLASLt was not found")) {
      GTEST_SKIP() << refusal;
    }
  }

  static DType dtype() { return GetParam(); }
  static Backend& backend() { return *cuda_backend(); }

  static Product product_of(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& out) {
    return {.op = "probe",
            .dtype = dtype(),
            .rows = s.rows,
            .cols = s.cols,
            .terms = s.terms,
            .a = a,
            .b = b,
            .out = out};
  }

  static void run(const Product& p) {
    const Context context = backend().context();
    ASSERT_EQ(cuda::cublaslt_refusal(context, p), nullptr) << cuda::cublaslt_refusal(context, p);
    cuda::run_cublaslt(context, p);
  }
};

INSTANTIATE_TEST_SUITE_P(on_cuda, CublasLtProduct,
                         ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kFloat16,
                                           DType::kBFloat16),
                         [](const auto& info) {
                           return std::string(transformer_kernels::name_of(info.param));
                         });

// Aligned and odd, of a single term, row and column.
constexpr Sizes kSizes[] = {{7, 511, 736},   {736, 1, 511}, {1504, 40, 37}, {33, 736, 1504},
                            {130, 1504, 96}, {1, 64, 40},   {50, 72, 1}};

TEST_P(CublasLtProduct, matches_the_reference_in_every_order) {
  for (const Sizes& s : kSizes) {
    const Values a_values = random_normal(s.rows * s.terms, dtype());
    const Values b_values = random_normal(s.terms * s.cols, dtype());
    const Values bias_values = random_normal(s.cols, dtype());
    const TestTensor bias(backend(), dtype(), 1, s.cols, bias_values);
    const Order by_rows{s.terms, 1}, of_b{1, s.cols};
    const Sums alone = product(s.rows, s.cols, s.terms, a_values, by_rows, b_values, of_b);
    const Sums with_bias =
        product(s.rows, s.cols, s.terms, a_values, by_rows, b_values, of_b, bias_values);
    for (const int orders : {0, 1, 2, 3}) {
      for (const Layout layout : {Layout{}, Layout{1, 3}}) {
        SCOPED_TRACE(name_of(s) + " of orders " + std::to_string(orders) + " and gap " +
                     std::to_string(layout.gap));
        const Stored a(backend(), dtype(), s.rows, s.terms, a_values, orders & 1, layout);
        const Stored b(backend(), dtype(), s.terms, s.cols, b_values, orders & 2, layout);
        TestTensor out(backend(), dtype(), s.rows, s.cols, layout);
        Product p = product_of(s, a.matrix(), b.matrix(), matrix_in(out));
        run(p);
        expect_close(dtype(), out.values(), alone);
        p.bias = bias.view().data;
        p.bias_dtype = dtype();
        const bool has_vectors = layout.gap == 0 && s.cols % 8 == 0 && s.terms % 8 == 0 &&
                                 ((orders & 1) != 0 || s.rows % 8 == 0 || s.rows == 1);
        if (size_of(dtype()) == 2 && !has_vectors) {
          EXPECT_STREQ(cuda::cublaslt_refusal(backend().context(), p),
                       "a bias of 16-bit matrices that are not 16-byte aligned would be added to"
                       " rounded sums");
        } else {
          run(p);
          expect_close(dtype(), out.values(), with_bias);
        }
        EXPECT_TRUE(out.surroundings_intact());

        TestTensor other(backend(), dtype(), s.cols, s.rows, layout);
        run(product_of(s, a.matrix(), b.matrix(), matrix_in(other, false)));
        expect_close(dtype(), by_columns(other.values(), s.cols, s.rows), alone);
        EXPECT_TRUE(other.surroundings_intact());
      }
    }
  }
}

TEST_P(CublasLtProduct, widens_its_result_and_adds_to_it) {
  const DType wide = size_of(dtype()) == 2 ? DType::kFloat32 : dtype();
  for (const Sizes& s : kSizes) {
    const Values a_values = random_normal(s.rows * s.terms, dtype());
    const Values b_values = random_normal(s.terms * s.cols, dtype());
    const Sums sums =
        product(s.rows, s.cols, s.terms, a_values, {s.terms, 1}, b_values, {1, s.cols});
    for (const int orders : {0, 1, 2, 3}) {
      for (const Layout layout : {Layout{}, Layout{1, 3}}) {
        SCOPED_TRACE(name_of(s) + " of orders " + std::to_string(orders) + " and gap " +
                     std::to_string(layout.gap));
        const Stored a(backend(), dtype(), s.rows, s.terms, a_values, orders & 1, layout);
        const Stored b(backend(), dtype(), s.terms, s.cols, b_values, orders & 2, layout);
        for (const DType result : {dtype(), wide}) {
          const Values old = random_normal(s.rows * s.cols, result);
          TestTensor out(backend(), result, s.rows, s.cols, old, layout);
          Product p = product_of(s, a.matrix(), b.matrix(), matrix_in(out));
          p.out_dtype = result;
          p.accumulates = true;
          run(p);
          expect_close(result, out.values(), added(old, sums), rounding_before(result, sums));
          p.accumulates = false;
          run(p);
          expect_close(result, out.values(), sums);
          EXPECT_TRUE(out.surroundings_intact());
        }
      }
    }
  }
}

TEST_P(CublasLtProduct, activates_the_rounded_sum) {
  constexpr Sizes kSize{100, 72, 200};
  const auto [rows, terms, cols] = kSize;
  const Values a_values = random_normal(rows * terms, dtype());
  const Values b_values = random_normal(terms * cols, dtype());
  const Values bias_values = random_normal(cols, dtype());
  const TestTensor a(backend(), dtype(), rows, terms, a_values);
  const TestTensor b(backend(), dtype(), terms, cols, b_values);
  const TestTensor bias(backend(), dtype(), 1, cols, bias_values);
  for (const Pointwise op : {Pointwise::kGelu, Pointwise::kGeluTanh}) {
    TestTensor y(backend(), dtype(), rows, cols), z(backend(), dtype(), rows, cols, Layout{0, 8});
    TestTensor expected(backend(), dtype(), rows, cols), inference(backend(), dtype(), rows, cols);
    Product p = product_of(kSize, matrix_in(a), matrix_in(b), matrix_in(y));
    p.bias = bias.view().data;
    p.bias_dtype = dtype();
    p.activation = op;
    p.kept = matrix_in(z);
    run(p);
    expect_close(
        dtype(), z.values(),
        product(rows, cols, terms, a_values, {terms, 1}, b_values, {1, cols}, bias_values));
    pointwise_forward(backend().context(), {.op = op, .x = z.view(), .y = expected.view()});
    EXPECT_EQ(y.values(), expected.values());
    EXPECT_TRUE(z.surroundings_intact());

    TestTensor sum(backend(), dtype(), rows, cols);
    p.kept = {};
    p.out = matrix_in(inference);
    run(p);
    p.activation = {};
    p.out = matrix_in(sum);
    run(p);
    pointwise_forward(backend().context(), {.op = op, .x = sum.view(), .y = expected.view()});
    EXPECT_EQ(inference.values(), expected.values());
    EXPECT_TRUE(inference.surroundings_intact());
  }
}

TEST_P(CublasLtProduct, gradient_at_an_activation) {
  constexpr Sizes kSize{100, 72, 200};
  const auto [rows, terms, cols] = kSize;
  const TestTensor a(backend(), dtype(), rows, terms, random_normal(rows * terms, dtype()));
  const TestTensor b(backend(), dtype(), terms, cols, random_normal(terms * cols, dtype()));
  const TestTensor z(backend(), dtype(), rows, cols, random_normal(rows * cols, dtype()));
  TestTensor sum(backend(), dtype(), rows, cols), dz(backend(), dtype(), rows, cols);
  TestTensor h(backend(), dtype(), rows, cols), expected_h(backend(), dtype(), rows, cols);
  TestTensor expected(backend(), dtype(), rows, cols);
  Product p = product_of(kSize, matrix_in(a), matrix_in(b), matrix_in(sum));
  run(p);
  p.activation = Pointwise::kSilu;
  p.z = matrix_in(z);
  p.kept = matrix_in(h);
  p.out = matrix_in(dz);
  run(p);
  pointwise_backward(backend().context(), {.op = Pointwise::kSilu,
                                           .dy = sum.view(),
                                           .x = z.view(),
                                           .dx = expected.view(),
                                           .y = expected_h.view()});
  EXPECT_EQ(dz.values(), expected.values());
  EXPECT_EQ(h.values(), expected_h.values());
  EXPECT_TRUE(dz.surroundings_intact());
  EXPECT_TRUE(h.surroundings_intact());
}

// Sums long enough for parts of their own.
TEST_P(CublasLtProduct, repeats_bit_for_bit) {
  constexpr Sizes kSize{64, 20480, 96};
  const auto [rows, terms, cols] = kSize;
  const TestTensor a(backend(), dtype(), rows, terms, random_normal(rows * terms, dtype()));
  const TestTensor b(backend(), dtype(), terms, cols, random_normal(terms * cols, dtype()));
  TestTensor out(backend(), dtype(), rows, cols);
  const Product p = product_of(kSize, matrix_in(a), matrix_in(b), matrix_in(out));
  run(p);
  const std::vector<std::uint8_t> first = out.bytes();
  for (int i = 0; i < 5; ++i) {
    run(p);
    EXPECT_EQ(out.bytes(), first);
  }
}

// Each that is offered; the first one beyond them is refused, and by itself none is missing.
TEST_P(CublasLtProduct, runs_the_algorithm_that_is_asked_for) {
  constexpr Sizes kSize{512, 1024, 768};
  constexpr std::int64_t kMostOffered = 16;
  const auto [rows, terms, cols] = kSize;
  const Values a_values = random_normal(rows * terms, dtype());
  const Values b_values = random_normal(terms * cols, dtype());
  const TestTensor a(backend(), dtype(), rows, terms, a_values);
  const TestTensor b(backend(), dtype(), terms, cols, b_values);
  const Sums expected = product(rows, cols, terms, a_values, {terms, 1}, b_values, {1, cols});
  const Context context = backend().context();
  std::int64_t offered = 0;
  for (;; ++offered) {
    SCOPED_TRACE("algorithm " + std::to_string(offered));
    TestTensor out(backend(), dtype(), rows, cols);
    Product p = product_of(kSize, matrix_in(a), matrix_in(b), matrix_in(out));
    p.algorithm = offered;
    const char* const refusal = cuda::cublaslt_refusal(context, p);
    if (refusal != nullptr) {
      EXPECT_STREQ(refusal, "cuBLASLt does not offer it for this product");
      EXPECT_THROW(cuda::multiply(context, p), Error);
      EXPECT_TRUE(out.untouched());
      break;
    }
    cuda::multiply(context, p);
    expect_close(dtype(), out.values(), expected);
  }
  EXPECT_GE(offered, 1);
  EXPECT_LE(offered, kMostOffered);
}

// A product that was never run before.
TEST_P(CublasLtProduct, is_captured_in_a_graph) {
  constexpr Sizes kSize{48, 2056, 264};
  const auto [rows, terms, cols] = kSize;
  const Values a_values = random_normal(rows * terms, dtype());
  const Values b_values = random_normal(terms * cols, dtype());
  const TestTensor a(backend(), dtype(), rows, terms, a_values);
  const TestTensor b(backend(), dtype(), terms, cols, b_values);
  TestTensor out(backend(), dtype(), rows, cols);
  const auto stream = static_cast<cudaStream_t>(backend().context().stream);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  run(product_of(kSize, matrix_in(a), matrix_in(b), matrix_in(out)));
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_TRUE(out.untouched());
  ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(ready, stream), cudaSuccess);
  expect_close(dtype(), out.values(),
               product(rows, cols, terms, a_values, {terms, 1}, b_values, {1, cols}));
  EXPECT_TRUE(out.surroundings_intact());
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
}

TEST_P(CublasLtProduct, says_what_it_does_not_take) {
  const TestTensor numbers(backend(), dtype(), 8, 8, Values(64, 1));
  const Matrix m = matrix_in(numbers);
  const auto refusal = [&](auto&& change) {
    Product p = product_of({8, 8, 8}, m, m, m);
    change(p);
    const char* const said = cuda::cublaslt_refusal(backend().context(), p);
    return std::string(said != nullptr ? said : "");
  };
  EXPECT_EQ(refusal([](Product&) {}), "");
  EXPECT_EQ(refusal([](Product& p) { p.terms = 0; }), "there are no terms");
  EXPECT_EQ(refusal([](Product& p) { p.a.row_step = 0; }),
            "elements of no row or column lie together");
  EXPECT_EQ(refusal([](Product& p) {
              p.out = p.out.transposed();
              p.activation = Pointwise::kSilu;
            }),
            "rows that are activated are not together");
  EXPECT_EQ(refusal([](Product& p) {
              p.out = p.out.transposed();
              p.bias = p.a.data;
              p.bias_dtype = p.dtype;
            }),
            "bias is of a result by columns");
  EXPECT_EQ(refusal([](Product& p) {
              p.bias = static_cast<const std::byte*>(p.a.data) + 8;
              p.bias_dtype = p.dtype;
            }),
            "bias is not 16-byte aligned");
  const bool is_wide = dtype() == DType::kFloat32;
  EXPECT_EQ(refusal([](Product& p) {
              p.bias = p.a.data;
              p.bias_dtype = DType::kFloat32;
            }),
            is_wide ? "" : "bias is of another dtype");
}

}  // namespace
}  // namespace transformer_kernels::testing

#endif
