// SPDX-License-Identifier: MIT
// Parts of epilogues, and what is composed of them, on each engine that runs chains of them.
#ifdef TFK_WITH_CUDA

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <tuple>

#include "backend.h"
#include "linear/epilogue_probe.h"
#include "linear/product_reference.h"
#include "philox_reference.h"
#include "test_tensor.h"

#if TFK_CUDA_SM80

namespace transformer_kernels::testing {
namespace {

struct Sizes {
  std::int64_t rows, terms, cols;
};
// A part of a tile; tiles with many blocks of terms; several tiles for each part of a processor.
constexpr Sizes kSizes[] = {{9, 64, 40}, {300, 712, 584}, {2056, 8, 3080}};

constexpr std::array<std::uint64_t, 2> kSeed = {0x0123456789abcdef, 42};
constexpr double kDropped = 0.25;
constexpr DropoutDraw kDraw{
    .below = 16384, .scale = 1 / (1 - kDropped), .seed = 0, .offset = 0, .seed_data = nullptr};

// A product with a bias, and what an epilogue may read and write.
struct Call {
  Backend& backend;
  DType dtype;
  Sizes s;
  Values x, weight, bias, residual, factors;
  TestTensor x_memory, weight_memory, bias_memory, residual_memory, factor_memory;
  TestTensor y, z, totals;
  DeviceArray<std::uint64_t> seed;

  Call(Backend& where, DType type, Sizes sizes)
      : backend(where),
        dtype(type),
        s(sizes),
        x(random_normal(s.rows * s.terms, type)),
        weight(random_normal(s.cols * s.terms, type)),
        bias(random_normal(s.cols, DType::kFloat32)),
        residual(random_normal(s.rows * s.cols, type)),
        factors(random_normal(s.rows, DType::kFloat32)),
        x_memory(where, type, s.rows, s.terms, x),
        weight_memory(where, type, s.cols, s.terms, weight),
        bias_memory(where, DType::kFloat32, 1, s.cols, bias),
        residual_memory(where, type, s.rows, s.cols, residual, kApart),
        factor_memory(where, DType::kFloat32, 1, s.rows, factors),
        y(where, type, s.rows, s.cols, kApart),
        z(where, type, s.rows, s.cols, kApart),
        totals(where, DType::kFloat32, 1, s.cols),
        seed(where, kSeed.data(), kSeed.size()) {}

  Product product() const {
    return {.op = "probe",
            .dtype = dtype,
            .rows = s.rows,
            .cols = s.cols,
            .terms = s.terms,
            .a = matrix_in(x_memory),
            .b = matrix_in(weight_memory).transposed(),
            .out = matrix_in(y),
            .kept = matrix_in(z),
            .bias = bias_memory.vector().data,
            .bias_dtype = DType::kFloat32};
  }
  DropoutDraw draw() const {
    DropoutDraw draw = kDraw;
    draw.seed_data = static_cast<const std::uint64_t*>(seed.vector(DType::kFloat64).data);
    return draw;
  }
  static Matrix matrix_in(const TestTensor& tensor) {
    return {tensor.view().data, tensor.view().strides[0], 1};
  }

  Sums sums() const {
    return testing::product(s.rows, s.cols, s.terms, x, {s.terms, 1}, weight, {s.terms, 1}, bias);
  }
  // Dropout of numbers of any accuracy, then the residual.
  Sums dropped_and_added(Sums sums) const {
    for (std::size_t i = 0; i < sums.sum.size(); ++i) {
      const bool is_kept = random_number(kSeed[0], kSeed[1], i) >= kDraw.below;
      const double factor = is_kept ? kDraw.scale : 0;
      sums.sum[i] = sums.sum[i] * factor + residual[i];
      sums.size[i] = sums.size[i] * factor + std::abs(residual[i]);
    }
    return sums;
  }
  // The sums of the columns of y, as it is rounded.
  Sums column_sums() {
    return testing::product(1, s.cols, s.rows, Values(s.rows, 1), {0, 1}, y.values(), {1, s.cols});
  }
  void expect_nothing_else_written() {
    EXPECT_TRUE(y.surroundings_intact());
    EXPECT_TRUE(z.surroundings_intact());
    EXPECT_TRUE(totals.surroundings_intact());
  }

 private:
  static constexpr Layout kApart{.offset = 8, .gap = 16};
};

constexpr const EpilogueProbe* kProbes[] = {
#if TFK_CUDA_SM90A
    &kHopperProbe,
#endif
    &kAmpereProbe};

class Epilogues : public ::testing::TestWithParam<std::tuple<const EpilogueProbe*, DType>> {
 protected:
  static const EpilogueProbe& engine() { return *std::get<0>(GetParam()); }

  // Calls body(call) with products of all sizes, where this machine has the engine.
  template <class Body>
  void for_each_size(Body body) {
    Backend* const backend = cuda_backend();
    if (backend == nullptr) GTEST_SKIP() << "no CUDA device";
    for (const Sizes& s : kSizes) {
      SCOPED_TRACE(std::to_string(s.rows) + 'x' + std::to_string(s.terms) + 'x' +
                   std::to_string(s.cols));
      Call call(*backend, std::get<1>(GetParam()), s);
      const char* const refusal = engine().refusal(backend->context(), call.product());
      if (refusal != nullptr) GTEST_SKIP() << refusal;
      body(call);
      call.expect_nothing_else_written();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(on_cuda, Epilogues,
                         ::testing::Combine(::testing::ValuesIn(kProbes),
                                            ::testing::Values(DType::kFloat16, DType::kBFloat16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)->name) + '_' +
                                  name_of(std::get<1>(info.param));
                         });

TEST_P(Epilogues, drop_and_add_a_residual) {
  for_each_size([](Call& call) {
    engine().dropout_add(call.backend.context(), call.product(), call.draw(),
                         Call::matrix_in(call.residual_memory));
    expect_close(call.dtype, call.y.values(), call.dropped_and_added(call.sums()));
    EXPECT_TRUE(call.z.untouched());
  });
}

// The activation is exact: what is kept says what the results are.
TEST_P(Epilogues, are_chains_of_parts) {
  for_each_size([](Call& call) {
    Product product = call.product();
    product.dbias = call.totals.vector().data;
    engine().relu_dropout_add(call.backend.context(), product, call.draw(),
                              Call::matrix_in(call.residual_memory));
    expect_close(call.dtype, call.z.values(), call.sums());
    Sums activated{call.z.values(), {}};
    for (double& value : activated.sum) value = std::fmax(value, 0);
    activated.size = activated.sum;
    expect_close(call.dtype, call.y.values(), call.dropped_and_added(activated));
    expect_close(DType::kFloat32, call.totals.values(), call.column_sums());
  });
}

TEST_P(Epilogues, scale_rows_and_sum_columns) {
  for_each_size([](Call& call) {
    Product product = call.product();
    product.dbias = call.totals.vector().data;
    engine().scale_rows(call.backend.context(), product,
                        static_cast<const float*>(call.factor_memory.vector().data));
    Sums scaled = call.sums();
    for (std::size_t i = 0; i < scaled.sum.size(); ++i) {
      const double factor = call.factors[i / call.s.cols];
      scaled.sum[i] *= factor;
      scaled.size[i] *= std::abs(factor);
    }
    expect_close(call.dtype, call.y.values(), scaled);
    expect_close(DType::kFloat32, call.totals.values(), call.column_sums());
    EXPECT_TRUE(call.z.untouched());
  });
}

}  // namespace
}  // namespace transformer_kernels::testing

#endif
#endif
