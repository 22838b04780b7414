// SPDX-License-Identifier: MIT
#include "transformer_kernels/rope/qk_norm.h"

#include "backend_test.h"
#include "error_of.h"
#include "rope/rope_cases.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::testing {
namespace {

struct QkNormOptions {
  bool weights = true;
  bool wide_weights = false;  // float32 for 16-bit q
  bool rotates = true;
};

// Tensors, tables and positions are those of a rotation; its results are the op's.
struct QkNormRun : RopeRun {
  static constexpr double kEps = 1e-3;

  QkNormOptions n;
  DType weight_dtype;
  Values dq_values, dk_values, q_weight_values, k_weight_values;
  HeadTensor dq_normed, dk_normed;
  TestTensor q_weight, k_weight, dq_weight, dk_weight;

  QkNormRun(Backend& where, DType type, const RopeShape& shape, const RopeOptions& options,
            const QkNormOptions& of_norm, const RopePlaces& given = {})
      : RopeRun(where, type, shape, options, given),
        n(of_norm),
        weight_dtype(of_norm.wide_weights && size_of(type) < 4 ? DType::kFloat32 : type),
        dq_values(random_normal(s.batch * s.time * s.q_heads * s.dim, type)),
        dk_values(random_normal(s.batch * s.time * s.k_heads * s.dim, type)),
        q_weight_values(random_normal(s.dim, weight_dtype, 1)),
        k_weight_values(random_normal(s.dim, weight_dtype, 1)),
        dq_normed(where, type, s, s.q_heads, o, dq_values),
        dk_normed(where, type, s, s.k_heads, o, dk_values),
        q_weight(where, weight_dtype, 1, s.dim, q_weight_values),
        k_weight(where, weight_dtype, 1, s.dim, k_weight_values),
        dq_weight(where, weight_dtype, 1, s.dim),
        dk_weight(where, weight_dtype, 1, s.dim) {}

  RopeAngles turn() const { return n.rotates ? angles() : RopeAngles{}; }
  TensorView weight_of(const TestTensor& weight) const {
    return n.weights ? weight.vector() : TensorView{};
  }

  QkNormForward arguments() const {
    return {.q = q.view(),
            .k = k.view(),
            .q_weight = weight_of(q_weight),
            .k_weight = weight_of(k_weight),
            .angles = turn(),
            .eps = kEps,
            .q_normed = q_rotated.view(),
            .k_normed = k_rotated.view()};
  }
  QkNormBackward gradients() const {
    return {.dq_normed = dq_normed.view(),
            .dk_normed = dk_normed.view(),
            .q = q.view(),
            .k = k.view(),
            .q_weight = weight_of(q_weight),
            .k_weight = weight_of(k_weight),
            .angles = turn(),
            .eps = kEps,
            .dq = q_rotated.view(),
            .dk = k_rotated.view(),
            .dq_weight = weight_of(dq_weight),
            .dk_weight = weight_of(dk_weight)};
  }

  void check() {
    SCOPED_TRACE(std::string(name_of(dtype)) + " dim " + std::to_string(s.dim) + " rotary " +
                 std::to_string(n.rotates ? s.rotary_dim : 0));
    qk_norm_forward(backend.context(), arguments());
    check_forward("q_normed", q, q_rotated, q_values, q_weight_values, s.q_heads);
    check_forward("k_normed", k, k_rotated, k_values, k_weight_values, s.k_heads);
    qk_norm_backward(backend.context(), gradients());
    check_backward("dq", q_rotated, q_values, dq_values, q_weight_values, dq_weight, s.q_heads);
    check_backward("dk", k_rotated, k_values, dk_values, k_weight_values, dk_weight, s.k_heads);
  }

 private:
  using Row = std::vector<double>;

  // The row rotated by the token's angle, or back.
  Row turned(const Row& x, std::int64_t b, std::int64_t t, double sign) const {
    Row y = x;
    if (!n.rotates || position(0, b, t) == kNotHeld) return y;
    const std::int64_t half = s.rotary_dim / 2;
    for (std::int64_t f = 0; f < half; ++f) {
      const std::int64_t at = position(0, b, t) * half + f;
      const std::int64_t first = o.interleaved ? 2 * f : f;
      const std::int64_t second = o.interleaved ? 2 * f + 1 : f + half;
      const double c = cos_values[at], sine = sign * sin_values[at];
      y[first] = x[first] * c - x[second] * sine;
      y[second] = x[second] * c + x[first] * sine;
    }
    return y;
  }

  double rstd_of(const double* x) const {
    double squares = 0;
    for (std::int64_t i = 0; i < s.dim; ++i) squares += x[i] * x[i];
    return 1 / std::sqrt(squares / static_cast<double>(s.dim) + kEps);
  }

  double arithmetic() const {
    return unit_roundoff(dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32);
  }

  // Tables are random numbers, no cosines: a pair may grow.
  void expect_row(const char* name, const double* got, const Row& expected, double size) const {
    for (std::int64_t i = 0; i < s.dim; ++i) {
      const double allowed =
          1.01 * unit_roundoff(dtype) * std::abs(expected[i]) + 64 * arithmetic() * size;
      ASSERT_NEAR(got[i], expected[i], allowed) << name << ", column " << i;
    }
  }

  template <class Body>
  void for_each_row(const HeadTensor& layout, std::int64_t heads, Body&& body) const {
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t t = 0; t < s.time; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) body(b, t, layout.row(b, t, h) * s.dim);
      }
    }
  }

  void check_forward(const char* name, HeadTensor& in, HeadTensor& out, const Values& x,
                     const Values& weight, std::int64_t heads) {
    const Values got = out.memory().values();
    for_each_row(in, heads, [&](std::int64_t b, std::int64_t t, std::int64_t first) {
      const double rstd = rstd_of(x.data() + first);
      Row y(s.dim);
      double size = 1;
      for (std::int64_t i = 0; i < s.dim; ++i) {
        y[i] = x[first + i] * rstd * (n.weights ? weight[i] : 1);
        size = std::max(size, 8 * std::abs(y[i]));
      }
      expect_row(name, got.data() + first, turned(y, b, t, 1), size);
    });
    EXPECT_TRUE(out.memory().surroundings_intact());
  }

  void check_backward(const char* name, HeadTensor& out, const Values& x, const Values& dy,
                      const Values& weight, TestTensor& dweight, std::int64_t heads) {
    const Values got = out.memory().values();
    Row sums(s.dim), sizes(s.dim);
    for_each_row(out, heads, [&](std::int64_t b, std::int64_t t, std::int64_t first) {
      const Row g = turned({dy.begin() + first, dy.begin() + first + s.dim}, b, t, -1);
      const double rstd = rstd_of(x.data() + first);
      double product = 0;
      double size = 1;
      for (std::int64_t i = 0; i < s.dim; ++i) {
        const double w = n.weights ? weight[i] : 1;
        product += g[i] * w * x[first + i] * rstd;
        size = std::max(size, 8 * rstd * std::abs(g[i] * w));
        sums[i] += g[i] * x[first + i] * rstd;
        sizes[i] += std::abs(g[i] * x[first + i] * rstd);
      }
      Row dx(s.dim);
      for (std::int64_t i = 0; i < s.dim; ++i) {
        const double w = n.weights ? weight[i] : 1;
        dx[i] = rstd * (g[i] * w - x[first + i] * rstd * product / static_cast<double>(s.dim));
      }
      expect_row(name, got.data() + first, dx, size * 4);
    });
    if (!n.weights) return;
    const Values got_sums = dweight.values();
    for (std::int64_t i = 0; i < s.dim; ++i) {
      const double allowed =
          1.01 * unit_roundoff(weight_dtype) * std::abs(sums[i]) + 64 * arithmetic() * sizes[i];
      ASSERT_NEAR(got_sums[i], sums[i], allowed) << name << "_weight, column " << i;
    }
    EXPECT_TRUE(out.memory().surroundings_intact() && dweight.surroundings_intact());
  }
};

class QkNorm : public BackendTest {
 protected:
  static void check(const RopeShape& s, RopeOptions o = {}, const QkNormOptions& n = {},
                    const RopePlaces& places = {}) {
    for (bool interleaved : {false, true}) {
      o.interleaved = interleaved;
      QkNormRun(backend(), dtype(), s, o, n, places).check();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(on, QkNorm, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(QkNorm, head_dims) {
  for (std::int64_t dim : {2, 8, 24, 34, 64, 96, 128, 192, 256, 576}) {
    check({.dim = dim, .rotary_dim = dim});
    check({.dim = dim, .rotary_dim = 2});
    check({.dim = dim, .rotary_dim = 2}, {}, {.rotates = false});
  }
}

TEST_P(QkNorm, partial_rotary_dims) {
  for (std::int64_t rotary : {16, 32, 48, 64}) check({.dim = 80, .rotary_dim = rotary});
}

TEST_P(QkNorm, weights) {
  check({.dim = 64, .rotary_dim = 64}, {}, {.weights = false});
  check({.dim = 64, .rotary_dim = 64}, {.wide_tables = true}, {.wide_weights = true});
  check({.dim = 30, .rotary_dim = 12}, {.wide_tables = true}, {.wide_weights = true});
}

TEST_P(QkNorm, heads_and_tokens) {
  for (const auto& [q, k] : {std::pair{1, 1}, {7, 3}, {32, 8}}) {
    check({.batch = 3, .time = 11, .q_heads = q, .k_heads = k, .dim = 32, .rotary_dim = 32});
  }
  check({.batch = 1, .time = 900, .q_heads = 2, .dim = 16, .rotary_dim = 8, .positions = 900});
}

TEST_P(QkNorm, layouts) {
  for (bool heads_first : {false, true}) {
    for (Layout layout : {Layout{0, 16}, Layout{1, 0}, Layout{3, 5}}) {
      check({.dim = 64, .rotary_dim = 32}, {.heads_first = heads_first, .layout = layout});
    }
  }
}

TEST_P(QkNorm, positions) {
  check({.dim = 32, .rotary_dim = 16}, {}, {}, {.offsets = {6, 0}});
  check({.dim = 32, .rotary_dim = 16}, {}, {}, {.ids = {3, 1, 4, 1, 5, 9, 2, 6, 10, 0}});
  check({.batch = 1, .time = 13, .dim = 32, .rotary_dim = 16}, {.flat = true}, {},
        {.cu_seqlens = {0, 4, 4, 11}});
}

// ---------------------------------------------------------------------------- bad arguments

template <class Spoil>
void expect_error(Spoil&& spoil, const std::string& expected) {
  QkNormRun run(*cpu_backend(), DType::kFloat32, {}, {}, {});
  QkNormForward a = run.arguments();
  spoil(a);
  EXPECT_EQ(error_of([&] { qk_norm_forward({}, a); }), expected);
  EXPECT_TRUE(run.q_rotated.memory().untouched() && run.k_rotated.memory().untouched());
}

TEST(QkNormErrors, of_the_forward_pass) {
  expect_error([](auto& a) { a.q = {}; }, "qk_norm: q is missing");
  expect_error([](auto& a) { a.q_weight.sizes[0] = 3; },
               "qk_norm: q_weight has 3 elements, expected 16 (the last dimension of q)");
  expect_error([](auto& a) { a.k_weight.dtype = DType::kFloat16; },
               "qk_norm: k_weight is float16, expected float32 (the dtype of q)");
  expect_error([](auto& a) { a.k = a.k_normed = {}; },
               "qk_norm: k_weight is given, expected none without k");
  expect_error([](auto& a) { a.eps = -1; }, "qk_norm: eps is -1, expected a number of 0 or more");
  expect_error([](auto& a) { a.angles.cos = {}; },
               "qk_norm: sin is given, expected none without cos");
  expect_error([](auto& a) { a.angles.sin = {}; }, "qk_norm: sin is missing");
  expect_error([](auto& a) { a.angles = {.offset = 1}; },
               "qk_norm: offset is 1, expected 0 without cos");
}

}  // namespace
}  // namespace transformer_kernels::testing
