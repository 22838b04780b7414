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

// y is of x's dtype, all else of the residual's.
template <class Norm>
struct ForwardRun {
  DropoutRun dropout;
  NormForwardRun<Norm> norm;
  TestTensor y;

  ForwardRun(Backend& backend, DType dtype, Matrix m, const DropoutOptions& o,
             const NormOptions& n = {})
      : dropout(backend, dtype, m, o),
        norm(backend, dropout.sum_dtype, m, n),
        y(backend, dtype, m.rows, m.cols, o.layout) {}

  BiasDropoutAddNormForward arguments() {
    BiasDropoutAddNormForward a;
    static_cast<NormForward&>(a) = norm.arguments();
    const BiasDropoutAddForward d = dropout.forward_arguments();
    a.x = d.x;
    a.x_bias = d.bias;
    a.residual = d.residual;
    a.seed = d.seed;
    a.p = d.p;
    a.y = y.view();
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
    EXPECT_TRUE(close(dropout.dtype, y.values(), expected.y, expected.largest_term));
    if (m.rows > 0) {
      EXPECT_TRUE(close(statistics_dtype(dropout.dtype), norm.rstd.values(), expected.rstd));
    }
    EXPECT_TRUE(y.surroundings_intact() && norm.sum.surroundings_intact() &&
                norm.mean.surroundings_intact() && norm.rstd.surroundings_intact());
  }
};

template <class Norm>
struct BackwardRun {
  ForwardRun<Norm> forward;
  DType sums;
  Values dy_values;
  TestTensor dy, wide_dy, dsum, dx, dresidual, alone, dx_bias, dweight, dbias;
  bool has_dsum = true;

  BackwardRun(Backend& backend, DType dtype, Matrix m, const DropoutOptions& o)
      : forward(backend, dtype, m, o),
        sums(forward.dropout.sum_dtype),
        dy_values(random_normal(m.rows * m.cols, dtype)),
        dy(backend, dtype, m.rows, m.cols, dy_values, o.layout),
        wide_dy(backend, sums, m.rows, m.cols, dy_values, o.layout),
        dsum(backend, sums, m.rows, m.cols, random_normal(m.rows * m.cols, sums), o.layout),
        dx(backend, dtype, m.rows, m.cols, o.layout),
        dresidual(backend, sums, m.rows, m.cols, o.layout),
        alone(backend, sums, m.rows, m.cols, o.layout),
        dx_bias(backend, forward.dropout.bias_dtype, 1, m.cols),
        dweight(backend, sums, 1, m.cols),
        dbias(backend, sums, 1, m.cols) {}

  BiasDropoutAddNormBackward arguments() {
    const BiasDropoutAddNormForward f = forward.arguments();
    BiasDropoutAddNormBackward a;
    a.dy = dy.view();
    if (has_dsum) a.dsum = dsum.view();
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
    double largest = 0;
    for (double e : expected) largest = std::max(largest, std::abs(e));
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 8 * unit_roundoff(sums) * largest) << what << " " << i;
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
    of_norm.dy = wide_dy.view();
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

// A branch of 16 bits beside a residual of float32; other dtypes as ever.
TEST_P(DropoutNorms, residual_in_float32) {
  const DropoutOptions mixed{.wide_bias = true, .wide_residual = true};
  for (std::int64_t cols : {1, 4, 33, 72, 130, 768, 1000, 1024, 2048, 2052, 4096, 12344}) {
    check_all({5, cols}, mixed);
  }
  check_all({301, 768}, mixed);
  check_all({0, 64}, mixed);
  for (double p : {0.0, 1.0}) {
    DropoutOptions o = mixed;
    o.p = p;
    check_all({4, 520}, o);
  }
  for (Layout layout : {Layout{0, 24}, Layout{4, 4}, Layout{1, 0}, Layout{3, 5}}) {
    DropoutOptions o = mixed;
    o.layout = layout;
    check_all({3, 136}, o);
  }
}

TEST_P(DropoutNorms, without_the_gradient_of_the_sum) {
  for (bool wide : {false, true}) {
    BackwardRun<DropoutLayerNorm> run(backend(), dtype(), {37, 768},
                                      {.bias = true, .wide_bias = wide, .wide_residual = wide});
    run.has_dsum = false;
    run.check(backend().context());
  }
}

// The contract allows the sum in the residual's memory, and dx in dy's.
TEST_P(DropoutNorms, in_place) {
  for (bool wide : {false, true}) {
    const DropoutOptions o{.bias = true, .wide_bias = wide, .wide_residual = wide};
    BackwardRun<DropoutLayerNorm> run(backend(), dtype(), {37, 768}, o);
    const Context context = backend().context();
    BiasDropoutAddNormForward f = run.forward.arguments();
    DropoutLayerNorm::dropout_forward(context, f);
    BiasDropoutAddNormBackward b = run.arguments();
    DropoutLayerNorm::dropout_backward(context, b);
    const Values y = run.forward.y.values(), dx = run.dx.values();
    f.sum = f.residual;
    DropoutLayerNorm::dropout_forward(context, f);
    EXPECT_EQ(run.forward.y.values(), y);
    EXPECT_EQ(run.forward.dropout.residual_memory.values(), run.forward.norm.sum.values());
    b.dx = b.dy;
    DropoutLayerNorm::dropout_backward(context, b);
    EXPECT_EQ(run.dy.values(), dx);
  }
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
        run.forward.y.bytes(), run.forward.norm.sum.bytes(), run.dx.bytes(),
        run.dresidual.bytes(), run.dx_bias.bytes(),          run.dweight.bytes()};
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
    EXPECT_TRUE(run.y.untouched() && run.norm.sum.untouched());
  };
  expect([](auto& a) { a.residual = {}; }, "residual is missing");
  expect([](auto& a) { a.residual.dtype = DType::kBFloat16; },
         "residual is bfloat16, expected float32 (the dtype of x)");
  expect([](auto& a) { a.x.dtype = DType::kFloat64; },
         "residual is float32, expected float64 (the dtype of x)");
  expect([](auto& a) { a.x.dtype = DType::kFloat16; },
         "y is float32, expected float16 (the dtype of x)");
  expect(
      [](auto& a) {
        a.x.dtype = a.y.dtype = DType::kFloat16;
        a.residual.dtype = DType::kBFloat16;
      },
      "residual is bfloat16, expected float16 or float32 (the dtype of x)");
  expect(
      [](auto& a) {
        a.x.dtype = a.y.dtype = DType::kBFloat16;
        a.sum.dtype = DType::kBFloat16;
      },
      "sum is bfloat16, expected float32 (the dtype of residual)");
  expect([](auto& a) { a.x.dtype = a.y.dtype = a.weight.dtype = DType::kBFloat16; },
         "weight is bfloat16, expected float32 (the dtype of residual)");
  expect([](auto& a) { a.x.dtype = a.y.dtype = a.x_bias.dtype = DType::kBFloat16; },
         "x_bias is bfloat16, expected float32 (the dtype of residual)");
  expect([](auto& a) { a.sum = {}; }, "sum is missing, expected with residual");
  expect([](auto& a) { a.p = 2; }, "p is 2, expected a number from 0 to 1");
  expect([](auto& a) { a.seed = {}; }, "seed is missing, expected one for 0 < p < 1");
  expect([](auto& a) { a.x_bias.sizes[0] = 7; },
         "x_bias has 7 elements, expected 8 (the last dimension of x)");
  expect([](auto& a) { a.weight.sizes[0] = 7; },
         "weight has 7 elements, expected 8 (the last dimension of x)");
}

TEST(DropoutNormErrors, of_the_backward_pass) {
  const auto expect = [](auto&& spoil, const char* expected) {
    BackwardRun<DropoutLayerNorm> run(*cpu_backend(), DType::kFloat32, {3, 8}, {.bias = true});
    BiasDropoutAddNormBackward a = run.arguments();
    spoil(a);
    EXPECT_EQ(error_of([&] { bias_dropout_add_layer_norm_backward({}, a); }),
              std::string("bias_dropout_add_layer_norm: ") + expected);
    EXPECT_TRUE(run.dx.untouched() && run.dresidual.untouched());
  };
  expect([](auto& a) { a.dy = {}; }, "dy is missing");
  expect([](auto& a) { a.dy.dtype = DType::kFloat64; },
         "dy is float64, expected float32, float16 or bfloat16 (the dtype of x)");
  expect([](auto& a) { a.dy.dtype = DType::kBFloat16; },
         "dx is float32, expected bfloat16 (the dtype of dy)");
  expect([](auto& a) { a.dy.dtype = a.dx.dtype = a.dsum.dtype = DType::kBFloat16; },
         "dsum is bfloat16, expected float32 (the dtype of x)");
  expect([](auto& a) { a.dx.dtype = DType::kBFloat16; },
         "dx is bfloat16, expected float32 (the dtype of x)");
}

}  // namespace
}  // namespace transformer_kernels::testing
