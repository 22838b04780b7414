// SPDX-License-Identifier: MIT
// Hopper's engine of few rows, called itself: what it refuses is an error here, and not another
// engine's.
#ifdef TFK_WITH_CUDA

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "backend.h"
#include "linear/cuda/engines.h"
#include "linear/product_reference.h"
#include "linear/quantized_weight.h"
#include "test_tensor.h"

#if TFK_CUDA_SM90A

namespace transformer_kernels::testing {
namespace {

constexpr DType kScales[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr Layout kAligned{.offset = 8, .gap = 8};

Matrix matrix_in(const TestTensor& tensor) {
  return {tensor.view().data, tensor.view().strides[0], 1};
}

class HopperRows : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (cuda_backend() == nullptr) GTEST_SKIP() << "no CUDA device";
    const char* const refusal = cuda::hopper_refusal(context(), Product{});
    if (refusal == std::string("needs sm_90")) GTEST_SKIP() << "no Hopper";
  }
  static DType dtype() { return GetParam(); }
  static Backend& backend() { return *cuda_backend(); }
  static Context context() { return backend().context(); }

  // `b` is null where the weight is quantised.
  static Product product_of(const TestTensor& x, const Matrix& b, const TestTensor& y,
                            const TestTensor& bias) {
    return {.op = "test",
            .dtype = dtype(),
            .rows = y.view().sizes[0],
            .cols = y.view().sizes[1],
            .terms = x.view().sizes[1],
            .a = matrix_in(x),
            .b = b,
            .out = matrix_in(y),
            .bias = bias.view().data,
            .bias_dtype = dtype()};
  }
};

INSTANTIATE_TEST_SUITE_P(on_cuda, HopperRows, ::testing::Values(DType::kFloat16, DType::kBFloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

QuantizedMatrix matrix_of(const QuantizedWeight& weight, std::int64_t group) {
  const TensorView scales = weight.scales();
  return {.packed = weight.packed.data,
          .packed_stride = weight.packed.strides[0],
          .scales = scales.data,
          .scales_stride = scales.strides[0],
          .scales_dtype = scales.dtype,
          .group = group,
          .bits = weight.packed.dtype == DType::kInt8 ? 8 : 4};
}

// Rows of scales begin at words of four bytes, whatever their number.
QuantizedWeight weight_of_words(Backend& backend, int bits, std::int64_t cols, std::int64_t terms,
                                std::int64_t group, DType scale_dtype) {
  constexpr std::int64_t kBytesApart = 48;
  return {backend, bits,        cols,        terms,
          group,   scale_dtype, kBytesApart, Layout{.offset = 2, .gap = 2 + terms / group % 2}};
}

// Less than a block of terms and than a tile of columns, ends of both, terms of few warps and of
// several rounds, several strips a CTA.
TEST_P(HopperRows, few_rows_of_a_plain_weight) {
  constexpr std::array<std::int64_t, 2> kSizes[] = {{8, 3},       {64, 16},   {72, 204},
                                                    {1096, 3208}, {4104, 33}, {136, 40001}};
  for (const auto& [terms, cols] : kSizes) {
    const Values w = random_normal(cols * terms, dtype());
    const Values x = random_normal(16 * terms, dtype());
    const Values bias = random_normal(cols, dtype());
    const TestTensor w_memory(backend(), dtype(), cols, terms, w, kAligned);
    const TestTensor bias_memory(backend(), dtype(), 1, cols, bias);
    const Sums expected = product(16, cols, terms, x, {terms, 1}, w, {terms, 1}, bias);
    Values first;
    for (const std::int64_t rows : {1, 7, 8, 9, 16}) {
      SCOPED_TRACE(std::to_string(rows) + 'x' + std::to_string(terms) + 'x' + std::to_string(cols));
      const TestTensor x_memory(backend(), dtype(), rows, terms, x, kAligned);
      TestTensor y(backend(), dtype(), rows, cols, Layout{1, 5});
      const Product p = product_of(x_memory, matrix_in(w_memory).transposed(), y, bias_memory);
      ASSERT_EQ(cuda::streamed_rows_refusal(context(), p), nullptr);
      cuda::run_streamed_rows(context(), p);
      const Values seen = y.values();
      expect_close(dtype(), seen, expected);
      EXPECT_TRUE(y.surroundings_intact());
      const Values row(seen.begin(), seen.begin() + cols);
      if (first.empty()) first = row;
      EXPECT_EQ(row, first);
    }
  }
}

struct Case {
  std::int64_t terms, cols, group;
};

// Half a block of terms and a block and a half, groups of a half block, of more and of a row, an
// odd number of them.
TEST_P(HopperRows, few_rows_of_a_quantised_weight) {
  constexpr Case kOf8[] = {{64, 5, 64},     {192, 24, 64},     {384, 3203, 192},
                           {2176, 40, 128}, {128, 34001, 128}, {4096, 80, 4096}};
  constexpr Case kOf4[] = {{128, 5, 128},   {384, 24, 128},    {768, 3203, 384},
                           {4352, 40, 256}, {256, 34001, 128}, {4096, 80, 4096}};
  int number = 0;
  for (const int bits : {8, 4}) {
    for (const auto& [terms, cols, group] : bits == 8 ? kOf8 : kOf4) {
      const QuantizedWeight weight =
          weight_of_words(backend(), bits, cols, terms, group, kScales[number++ % 3]);
      const Values x = random_normal(16 * terms, dtype());
      const Values bias = random_normal(cols, dtype());
      const TestTensor bias_memory(backend(), dtype(), 1, cols, bias);
      const Sums expected =
          product(16, cols, terms, x, {terms, 1}, weight.values, {terms, 1}, bias);
      Values first;
      for (const std::int64_t rows : {1, 7, 8, 9, 16}) {
        SCOPED_TRACE(std::to_string(rows) + 'x' + std::to_string(terms) + 'x' +
                     std::to_string(cols) + " int" + std::to_string(bits));
        const TestTensor x_memory(backend(), dtype(), rows, terms, x, kAligned);
        TestTensor y(backend(), dtype(), rows, cols, Layout{1, 5});
        const Product p = product_of(x_memory, {}, y, bias_memory);
        const QuantizedMatrix matrix = matrix_of(weight, group);
        ASSERT_EQ(cuda::streamed_rows_refusal(context(), p, matrix), nullptr);
        cuda::run_streamed_rows(context(), p, matrix);
        const Values seen = y.values();
        expect_near(dtype(), seen, expected, false);
        EXPECT_TRUE(y.surroundings_intact());
        const Values row(seen.begin(), seen.begin() + cols);
        if (first.empty()) first = row;
        EXPECT_EQ(row, first);
      }
    }
  }
}

TEST_P(HopperRows, say_what_is_not_taken) {
  const TestTensor x(backend(), dtype(), 16, 256), y(backend(), dtype(), 16, 64);
  const TestTensor bias(backend(), dtype(), 1, 64), w(backend(), dtype(), 256, 64);
  EXPECT_STREQ(cuda::streamed_rows_refusal(context(), product_of(x, matrix_in(w), y, bias)),
               "terms of the weight are not together");
  const Product p = product_of(x, {}, y, bias);
  const auto refusal = [&](const QuantizedWeight& weight, std::int64_t group) {
    return cuda::streamed_rows_refusal(context(), p, matrix_of(weight, group));
  };
  EXPECT_STREQ(refusal(weight_of_words(backend(), 4, 64, 256, 32, DType::kFloat32), 32),
               "groups are no multiple of what is multiplied at once");
  EXPECT_STREQ(refusal(QuantizedWeight(backend(), 8, 64, 256, 128, DType::kFloat16, 0), 128),
               "rows of scales are not 4-byte aligned");
  EXPECT_STREQ(refusal(QuantizedWeight(backend(), 8, 64, 256, 128, DType::kFloat32, 4), 128),
               "rows of packed are not 16-byte aligned");
}

}  // namespace
}  // namespace transformer_kernels::testing

#endif
#endif
