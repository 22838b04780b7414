// SPDX-License-Identifier: MIT
#include "transformer_kernels/moe/router.h"

#include <algorithm>
#include <string>

#include "backend_test.h"
#include "error_of.h"
#include "reference.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

struct Case {
  Matrix m;
  std::int64_t chosen = 1;
  RouterScore score = RouterScore::kSoftmax;
  bool renormalize = true;
  bool bias = false;
  std::int64_t groups = 1;
  std::int64_t top_groups = 1;
  double jitter = 0;
  double noise = 0;
  Layout layout{};
  std::int64_t sequences = 1;
  double scale = 1.5;
};

struct Inputs {
  Case c;
  Values x, bias, dweights, dimportance, dlse;
};

struct Reference {
  Values weights, indices, importance, lse, dx;
};

// Multiples of 1/16, which every dtype holds, and of which few are equal.
Values logits(Matrix m) {
  std::uniform_int_distribution<int> number(-64, 64);
  Values x(m.rows * m.cols);
  for (double& v : x) v = number(random_engine()) / 16.0;
  return x;
}

std::vector<long double> scores_of(RouterScore score, const double* z, std::int64_t count) {
  std::vector<long double> s(count);
  long double sum = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    const long double v = z[j];
    s[j] = score == RouterScore::kSoftmax   ? std::exp(v)
           : score == RouterScore::kSigmoid ? 1 / (1 + std::exp(-v))
                                            : std::sqrt(std::log1p(std::exp(v)));
    sum += s[j];
  }
  if (score == RouterScore::kSoftmax) {
    for (long double& v : s) v /= sum;
  }
  return s;
}

// The indices of the largest, the first of equal ones first.
std::vector<std::int64_t> largest(const std::vector<long double>& c, std::int64_t begin,
                                  std::int64_t end, std::int64_t count) {
  std::vector<std::int64_t> order;
  for (std::int64_t j = begin; j < end; ++j) order.push_back(j);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return c[a] > c[b]; });
  order.resize(std::min<std::size_t>(count, order.size()));
  return order;
}

std::vector<std::int64_t> choose(const Case& c, const std::vector<long double>& choice) {
  const std::int64_t size = c.m.cols / c.groups;
  std::vector<long double> best;
  for (std::int64_t g = 0; g < c.groups; ++g) {
    long double sum = 0;
    for (const std::int64_t j : largest(choice, g * size, (g + 1) * size, 2)) sum += choice[j];
    best.push_back(sum);
  }
  std::vector<long double> open(c.m.cols, -kInfinity);
  for (const std::int64_t g : largest(best, 0, c.groups, c.top_groups)) {
    std::copy_n(choice.begin() + g * size, size, open.begin() + g * size);
  }
  return largest(open, 0, c.m.cols, c.chosen);
}

// The loss whose gradient the backward pass returns, as a function of one token's logits.
long double loss_of(const Inputs& in, std::int64_t t, const double* z, const double* indices) {
  const Case& c = in.c;
  const std::vector<long double> s = scores_of(c.score, z, c.m.cols);
  long double chosen = 0;
  long double all = 0;
  long double powers = 0;
  for (std::int64_t k = 0; k < c.chosen; ++k) chosen += s[static_cast<std::int64_t>(indices[k])];
  for (std::int64_t j = 0; j < c.m.cols; ++j) {
    all += s[j];
    powers += std::exp(static_cast<long double>(z[j]));
  }
  long double loss = in.dlse[t] * std::log(powers);
  for (std::int64_t k = 0; k < c.chosen; ++k) {
    const long double share = s[static_cast<std::int64_t>(indices[k])];
    loss += in.dweights[t * c.chosen + k] * c.scale * (c.renormalize ? share / chosen : share);
  }
  const std::int64_t sequence = t / (c.m.rows / c.sequences);
  for (std::int64_t j = 0; j < c.m.cols; ++j) {
    loss += in.dimportance[sequence * c.m.cols + j] * s[j] / all;
  }
  return loss;
}

Reference reference_of(const Inputs& in) {
  const Case& c = in.c;
  const auto [rows, cols] = c.m;
  Reference out{Values(rows * c.chosen), Values(rows * c.chosen), Values(c.sequences * cols),
                Values(rows), Values(rows * cols)};
  for (std::int64_t t = 0; t < rows; ++t) {
    const double* const x = in.x.data() + t * cols;
    const std::vector<long double> s = scores_of(c.score, x, cols);
    std::vector<long double> choice(cols);
    for (std::int64_t j = 0; j < cols; ++j) {
      choice[j] = c.bias || c.groups > 1 ? s[j] + (c.bias ? in.bias[j] : 0) : x[j];
    }
    const std::vector<std::int64_t> chosen = choose(c, choice);
    long double sum = 0;
    long double all = 0;
    long double powers = 0;
    for (const std::int64_t j : chosen) sum += s[j];
    for (std::int64_t j = 0; j < cols; ++j) {
      all += s[j];
      powers += std::exp(static_cast<long double>(x[j]));
    }
    for (std::int64_t k = 0; k < c.chosen; ++k) {
      out.weights[t * c.chosen + k] =
          static_cast<double>(c.scale * s[chosen[k]] / (c.renormalize ? sum : 1));
      out.indices[t * c.chosen + k] = static_cast<double>(chosen[k]);
    }
    for (std::int64_t j = 0; j < cols; ++j) {
      out.importance[t / (rows / c.sequences) * cols + j] += static_cast<double>(s[j] / all);
    }
    out.lse[t] = static_cast<double>(std::log(powers));
    Values z(x, x + cols);
    // Central differences, of some columns of a long row.
    for (std::int64_t j = 0; j < cols; ++j) {
      const bool is_chosen = std::ranges::find(chosen, j) != chosen.end();
      out.dx[t * cols + j] = kNan;
      if (!is_chosen && j % (cols / 16 + 1) != 0) continue;
      constexpr double kStep = 0x1p-12;
      const double* const indices = out.indices.data() + t * c.chosen;
      z[j] = x[j] + kStep;
      const long double above = loss_of(in, t, z.data(), indices);
      z[j] = x[j] - kStep;
      const long double below = loss_of(in, t, z.data(), indices);
      z[j] = x[j];
      out.dx[t * cols + j] = static_cast<double>((above - below) / (2 * kStep));
    }
  }
  return out;
}

class MoeRouter : public BackendTest {
 protected:
  static DType wide() { return dtype() == DType::kFloat64 ? dtype() : DType::kFloat32; }

  static void check(const Case& c) {
    SCOPED_TRACE(std::to_string(c.m.rows) + "x" + std::to_string(c.m.cols) + " top " +
                 std::to_string(c.chosen) + " score " + std::to_string(static_cast<int>(c.score)));
    const auto [rows, cols] = c.m;
    Inputs in{c,
              logits(c.m),
              logits({1, cols}),
              random_normal(rows * c.chosen, wide()),
              random_normal(c.sequences * cols, wide()),
              random_normal(rows, wide())};
    // Half a step beside the scores of others: no rounding makes two sums equal.
    for (std::int64_t j = 0; j < cols; ++j) in.bias[j] = 2.0 * ((j * 37) % cols);
    const Reference expected = reference_of(in);
    TestTensor x(backend(), dtype(), rows, cols, in.x, c.layout);
    TestTensor bias(backend(), wide(), 1, cols, in.bias);
    TestTensor dx(backend(), dtype(), rows, cols, c.layout);
    TestTensor weights(backend(), wide(), rows, c.chosen);
    TestTensor dweights(backend(), wide(), rows, c.chosen, in.dweights);
    TestTensor importance(backend(), wide(), c.sequences, cols);
    TestTensor dimportance(backend(), wide(), c.sequences, cols, in.dimportance);
    TestTensor lse(backend(), wide(), 1, rows);
    TestTensor dlse(backend(), wide(), 1, rows, in.dlse);
    TestTensor indices(backend(), DType::kInt32, rows, c.chosen);
    const RouterOptions options{.score = c.score, .renormalize = c.renormalize, .scale = c.scale};
    moe_router_forward(backend().context(), {.x = x.view(),
                                             .expert_bias = c.bias ? bias.vector() : TensorView{},
                                             .options = options,
                                             .groups = c.groups,
                                             .top_groups = c.top_groups,
                                             .weights = weights.view(),
                                             .indices = indices.view(),
                                             .importance = importance.view(),
                                             .lse = lse.vector()});
    EXPECT_EQ(indices.values(), expected.indices);
    EXPECT_TRUE(close(wide(), weights.values(), expected.weights, 20));
    EXPECT_TRUE(close(wide(), importance.values(), expected.importance, 40));
    EXPECT_TRUE(close(wide(), lse.values(), expected.lse, 20));
    moe_router_backward(backend().context(), {.dweights = dweights.view(),
                                              .dimportance = dimportance.view(),
                                              .dlse = dlse.vector(),
                                              .x = x.view(),
                                              .indices = indices.view(),
                                              .options = options,
                                              .dx = dx.view()});
    // The reference's differences have an error of their own.
    const Values found = dx.values();
    const double bound = dtype() == DType::kFloat64   ? 1e-6
                         : dtype() == DType::kFloat32 ? 2e-5
                                                      : 4e-2;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (std::isnan(expected.dx[i])) continue;
      EXPECT_NEAR(found[i], expected.dx[i], bound * (1 + std::abs(expected.dx[i]))) << i;
    }
    for (TestTensor* y : {&dx, &weights, &importance, &lse, &indices}) {
      EXPECT_TRUE(y->surroundings_intact());
    }
  }
};

INSTANTIATE_TEST_SUITE_P(on, MoeRouter, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(MoeRouter, shapes) {
  for (std::int64_t cols : {1, 3, 8, 61, 128, 129, 260, 600, 1500}) {
    const std::int64_t chosen = std::min<std::int64_t>(cols, cols % 16 + 1);
    check({.m = {3, cols}, .chosen = chosen});
  }
  check({.m = {1, 4096}, .chosen = 16});
}

TEST_P(MoeRouter, every_option) {
  for (int bits = 0; bits < 24; ++bits) {
    const auto has = [&](int bit) { return (bits >> bit & 1) != 0; };
    check({.m = {12, 40},
           .chosen = 4,
           .score = static_cast<RouterScore>(bits / 8),
           .renormalize = has(0),
           .bias = has(1),
           .groups = has(1) ? 5 : 1,
           .top_groups = has(1) ? 2 : 1,
           .layout = has(2) ? Layout{1, 3} : Layout{},
           .sequences = has(2) ? 3 : 1});
  }
}

// A backward pass of no gradient at all is 0; of tokens there may be none.
TEST_P(MoeRouter, nothing) {
  TestTensor x(backend(), dtype(), 2, 6, logits({2, 6}));
  TestTensor dx(backend(), dtype(), 2, 6);
  TestTensor indices(backend(), DType::kInt32, 2, 1, Values{0, 5});
  moe_router_backward(backend().context(),
                      {.x = x.view(), .indices = indices.view(), .dx = dx.view()});
  EXPECT_EQ(dx.values(), Values(12, 0));
  TestTensor importance(backend(), wide(), 2, 6);
  TestTensor none(backend(), dtype(), 0, 6);
  TestTensor no_weights(backend(), wide(), 0, 1);
  TestTensor no_indices(backend(), DType::kInt32, 0, 1);
  moe_router_forward(backend().context(), {.x = none.view(),
                                           .weights = no_weights.view(),
                                           .indices = no_indices.view(),
                                           .importance = importance.view()});
  EXPECT_EQ(importance.values(), Values(12, 0));
}

TEST_P(MoeRouter, bad_arguments) {
  TestTensor x(backend(), dtype(), 4, 8, logits({4, 8}));
  TestTensor weights(backend(), wide(), 4, 2);
  TestTensor indices(backend(), DType::kInt32, 4, 2);
  const MoeRouterForward good{.x = x.view(), .weights = weights.view(), .indices = indices.view()};
  const auto refusal = [&](auto&& change) {
    MoeRouterForward bad = good;
    change(bad);
    return error_of([&] { moe_router_forward(backend().context(), bad); });
  };
  EXPECT_EQ(refusal([](auto& a) { a.groups = 3; }),
            "moe_router: groups is 3, expected 1 to 32, a divisor of 8 experts");
  EXPECT_EQ(refusal([](auto& a) { a.groups = 8; }),
            "moe_router: top_groups is 1, expected groups of 2 experts or more (top_k)");
  EXPECT_EQ(refusal([](auto& a) { a.options.jitter = 0.5; }),
            "moe_router: seed is missing, expected one for jitter and noise");
  EXPECT_EQ(refusal([](auto& a) { a.options.scale = kInfinity; }),
            "moe_router: scale is inf, expected a finite number");
  EXPECT_EQ(refusal([](auto& a) { a.weights = {}; }), "moe_router: weights is missing");
  EXPECT_TRUE(weights.untouched());
  EXPECT_TRUE(indices.untouched());
}

}  // namespace
}  // namespace transformer_kernels::testing
