// SPDX-License-Identifier: MIT
// The norms of dropout(x + x_bias) + residual: the sum by the definition of dropout, and the norm
// by that of the sum that is stored.
#include "backend_test.h"
#include "error_of.h"
#include "norm/norm_cases.h"
#include "parallel_hooks.h"
#include "pointwise/dropout_cases.h"

namespace transformer_kernels::testing {
namespace {

struct DropoutLayerNorm : LayerNorm {
  static constexpr auto* dropout_forward = bias_dropout_add_layer_norm_forward;
  static constexpr auto* dropout_backward = bias_dropout_add_layer_norm_backward;
};
struct DropoutRmsNorm : RmsNorm {
  static constexpr auto* dropout_forward = bias_dropout_add_rms_norm_forward;
  static constexpr auto* dropout_backward = bias_dropout_add_rms_norm_backward;
};

template <class Norm>
struct ForwardRun {
  DropoutRun dropout;
  NormForwardRun<Norm> norm;

  ForwardRun(Backend& backend, DType dtype, Matrix m, const DropoutOptions& o,
             const NormOptions& n = {})
      : dropout(backend, dtype, m, o),
        norm(backend, dtype, m, n) {}

  BiasDropoutAddNormForward arguments() {
    BiasDropoutAddNormForward a;
    static_cast<NormForward&>(a) = norm.arguments();
    const BiasDropoutAddForward d = dropout.forward_arguments();
    a.x = d.x;
    a.x_bias = d.bias;
    a.residual = d.residual;
    a.seed = d.seed;
    a.p = d.p;
    a.sum = norm.sum.view();
    return a;
  }

  void check(const Context& context) {
    SCOPED_TRACE("forward " + dropout.description());
    const BiasDropoutAddNormForward a = arguments();
    Norm::dropout_forward(context, a);
    const Values sum = norm.sum.values();
    dropout.expect_y(sum);
    const Matrix m = dropout.m;
    const Values no_bias(m.cols, 0.0);
    const NormReference expected =
        norm_reference(m, Norm::kCenter, sum, scale_of(norm.weight, m.cols, norm.o),
                       norm.o.bias ? norm.bias : no_bias, Norm::kEps);
    EXPECT_TRUE(close(dropout.dtype, norm.y.values(), expected.y, expected.largest_term));
    if (m.rows > 0) {
      EXPECT_TRUE(close(statistics_dtype(dropout.dtype), norm.rstd.values(), expected.rstd));
    }
    EXPECT_TRUE(norm.y.surroundings_intact() && norm.sum.surroundings_intact() &&
                norm.mean.surroundings_intact() && norm.rstd.surroundings_intact());
  }
};

template <class Norm>
struct BackwardRun {
  ForwardRun<Norm> forward;
  TestTensor dy, dsum, dx, dresidual, alone, dx_bias, dweight, dbias;

  BackwardRun(Backend& backend, DType dtype, Matrix m, const DropoutOptions& o)
      : forward(backend, dtype, m, o),
        dy(backend, dtype, m.rows, m.cols, random_normal(m.rows * m.cols, dtype), o.layout),
        dsum(backend, dtype, m.rows, m.cols, random_normal(m.rows * m.cols, dtype), o.layout),
        dx(backend, dtype, m.rows, m.cols, o.layout),
        dresidual(backend, dtype, m.rows, m.cols, o.layout),
        alone(backend, dtype, m.rows, m.cols, o.layout),
        dx_bias(backend, forward.dropout.bias_dtype, 1, m.cols),
        dweight(backend, dtype, 1, m.cols),
        dbias(backend, dtype, 1, m.cols) {}

  BiasDropoutAddNormBackward arguments() {
    const BiasDropoutAddNormForward f = forward.arguments();
    BiasDropoutAddNormBackward a;
    a.dy = dy.view();
    a.dsum = dsum.view();
    a.x = f.sum;
    a.mean = f.mean;
    a.rstd = f.rstd;
    a.weight = f.weight;
    a.dx = dx.view();
    a.dweight = dweight.vector();
    a.dbias = dbias.vector();
    a.dresidual = dresidual.view();
    if (forward.dropout.o.bias) a.dx_bias = dx_bias.vector();
    a.seed = f.seed;
    a.p = f.p;
    return a;
  }

  // Two results of one formula, which may be added up in another order.
  void expect_alike(const char* what, const Values& got, const Values& expected) const {
    const DType dtype = forward.dropout.dtype;
    double largest = 0;
    for (double e : expected) largest = std::max(largest, std::abs(e));
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 8 * unit_roundoff(dtype) * largest) << what << " " << i;
    }
  }

  void check(const Context& context) {
    SCOPED_TRACE("backward " + forward.dropout.description());
    Norm::dropout_forward(context, forward.arguments());
    const BiasDropoutAddNormBackward a = arguments();
    Norm::dropout_backward(context, a);
    const Values got_dweight = dweight.values();
    const Values got_dbias = dbias.values();
    NormBackward of_norm = a;
    of_norm.dx = alone.view();
    Norm::backward(context, of_norm);
    expect_alike("dresidual", dresidual.values(), alone.values());
    expect_alike("dweight", got_dweight, dweight.values());
    expect_alike("dbias", got_dbias, dbias.values());
    const DropoutRun& d = forward.dropout;
    DropoutRun(d.backend, d.dtype, d.m, d.o, dresidual.values())
        .expect_gradients(dx.values(), dx_bias.values());
    EXPECT_TRUE(dx.surroundings_intact() && dresidual.surroundings_intact() &&
                dx_bias.surroundings_intact());
  }
};

class DropoutNorms : public BackendTest {
 protected:
  static void check_all(Matrix m, DropoutOptions o) {
    for (bool bias : {false, true}) {
      o.bias = bias;
      const Context context = backend().context();
      ForwardRun<DropoutLayerNorm>(backend(), dtype(), m, o).check(context);
      ForwardRun<DropoutRmsNorm>(backend(), dtype(), m, o).check(context);
      BackwardRun<DropoutLayerNorm>(backend(), dtype(), m, o).check(context);
      BackwardRun<DropoutRmsNorm>(backend(), dtype(), m, o).check(context);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(on, DropoutNorms, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(DropoutNorms, widths) {
  for (std::int64_t cols : {1, 8, 24, 33, 130, 768, 1000, 1024, 2048, 4096})
    check_all({3, cols}, {});
}

TEST_P(DropoutNorms, wide_rows) {
  for (std::int64_t cols : {8192, 12344, 16384, 40000}) check_all({2, cols}, {});
}

TEST_P(DropoutNorms, many_rows) { check_all({301, 72}, {}); }

TEST_P(DropoutNorms, no_rows) { check_all({0, 64}, {}); }

TEST_P(DropoutNorms, layouts) {
  for (Layout layout : {Layout{0, 24}, Layout{1, 0}, Layout{3, 5}, Layout{8, 8}}) {
    check_all({3, 136}, {.layout = layout});
  }
}

TEST_P(DropoutNorms, probabilities) {
  for (double p : {0.0, 0.1, 1.0}) check_all({4, 520}, {.p = p});
}

TEST_P(DropoutNorms, bias_in_float32) { check_all({9, 96}, {.wide_bias = true}); }

TEST_P(DropoutNorms, seed_beside_x) { check_all({4, 72}, {.seed_on_device = true}); }

TEST_P(DropoutNorms, parameters_in_float32) {
  for (std::int64_t cols : {96, 2048, 8192}) {
    ForwardRun<DropoutLayerNorm>(backend(), dtype(), {5, cols}, {.bias = true},
                                 {.float32_parameters = true})
        .check(backend().context());
  }
}

TEST_P(DropoutNorms, repeatable) {
  BackwardRun<DropoutLayerNorm> run(backend(), dtype(), {301, 72}, {.bias = true});
  std::vector<std::vector<std::uint8_t>> first;
  for (const Context& context : contexts_with_different_threads(backend())) {
    DropoutLayerNorm::dropout_forward(context, run.forward.arguments());
    DropoutLayerNorm::dropout_backward(context, run.arguments());
    const std::vector<std::vector<std::uint8_t>> bytes = {
        run.forward.norm.y.bytes(), run.forward.norm.sum.bytes(), run.dx.bytes(),
        run.dresidual.bytes(),      run.dx_bias.bytes(),          run.dweight.bytes()};
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
}

TEST(DropoutNormErrors, name_the_op_and_the_argument) {
  const auto expect = [](auto&& spoil, const char* expected) {
    ForwardRun<DropoutLayerNorm> run(*cpu_backend(), DType::kFloat32, {3, 8}, {.bias = true});
    BiasDropoutAddNormForward a = run.arguments();
    spoil(a);
    EXPECT_EQ(error_of([&] { bias_dropout_add_layer_norm_forward({}, a); }),
              std::string("bias_dropout_add_layer_norm: ") + expected);
    EXPECT_TRUE(run.norm.y.untouched() && run.norm.sum.untouched());
  };
  expect([](auto& a) { a.residual = {}; }, "residual is missing");
  expect([](auto& a) { a.sum = {}; }, "sum is missing, expected with residual");
  expect([](auto& a) { a.p = 2; }, "p is 2, expected a number from 0 to 1");
  expect([](auto& a) { a.seed = {}; }, "seed is missing, expected one for 0 < p < 1");
  expect([](auto& a) { a.x_bias.sizes[0] = 7; },
         "x_bias has 7 elements, expected 8 (the last dimension of x)");
  expect([](auto& a) { a.weight.sizes[0] = 7; },
         "weight has 7 elements, expected 8 (the last dimension of x)");
}

}  // namespace
}  // namespace transformer_kernels::testing
