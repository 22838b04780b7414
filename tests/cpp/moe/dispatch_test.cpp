// SPDX-License-Identifier: MIT
#include "transformer_kernels/moe/dispatch.h"

#include <algorithm>
#include <string>

#include "backend_test.h"
#include "error_of.h"
#include "reference.h"
#include "test_tensor.h"

namespace transformer_kernels::testing {
namespace {

struct Case {
  std::int64_t tokens;
  std::int64_t assigned;
  std::int64_t experts;
  std::int64_t capacity = 0;
  std::int64_t cols = 8;
  Layout layout{};

  std::int64_t assignments() const { return tokens * assigned; }
};

struct Sorted {
  Values offsets, tokens, places;
};

Values indices_of(const Case& c) {
  std::uniform_int_distribution<std::int64_t> expert(-1, c.experts);  // two of which are none
  Values indices(c.assignments());
  for (double& v : indices) v = static_cast<double>(expert(random_engine()));
  return indices;
}

// By a walk through the assignments for each expert: first those that it keeps, then all others.
Sorted sorted(const Case& c, const Values& indices) {
  Sorted out{{}, Values(c.assignments()), Values(c.assignments())};
  std::vector<std::int64_t> dropped;
  std::int64_t place = 0;
  for (std::int64_t e = 0; e < c.experts; ++e) {
    out.offsets.push_back(static_cast<double>(place));
    std::int64_t taken = 0;
    for (std::int64_t i = 0; i < c.assignments(); ++i) {
      if (indices[i] != static_cast<double>(e)) continue;
      if (c.capacity > 0 && taken++ >= c.capacity) {
        dropped.push_back(i);
        continue;
      }
      out.tokens[place] = static_cast<double>(i / c.assigned);
      out.places[i] = static_cast<double>(place++);
    }
  }
  out.offsets.push_back(static_cast<double>(place));
  for (std::int64_t i = 0; i < c.assignments(); ++i) {
    if (indices[i] < 0 || indices[i] >= static_cast<double>(c.experts)) dropped.push_back(i);
  }
  for (const std::int64_t i : dropped) {
    out.tokens[place] = -1;
    out.places[i] = static_cast<double>(~place++);
  }
  return out;
}

class MoeDispatch : public BackendTest {
 protected:
  static DType wide() { return dtype() == DType::kFloat64 ? dtype() : DType::kFloat32; }

  static Values check_sort(const Case& c) {
    SCOPED_TRACE(std::to_string(c.tokens) + "x" + std::to_string(c.assigned) + " to " +
                 std::to_string(c.experts));
    const Values drawn = indices_of(c);
    const Sorted expected = sorted(c, drawn);
    TestTensor indices(backend(), DType::kInt32, c.tokens, c.assigned, drawn);
    TestTensor places(backend(), DType::kInt32, c.tokens, c.assigned);
    TestTensor offsets(backend(), DType::kInt32, 1, c.experts + 1);
    TestTensor tokens(backend(), DType::kInt32, 1, c.assignments());
    moe_sort(backend().context(), {.indices = indices.view(),
                                   .experts = c.experts,
                                   .capacity = c.capacity,
                                   .offsets = offsets.vector(),
                                   .tokens = tokens.vector(),
                                   .places = places.view()});
    EXPECT_EQ(offsets.values(), expected.offsets);
    EXPECT_EQ(tokens.values(), expected.tokens);
    EXPECT_EQ(places.values(), expected.places);
    for (TestTensor* y : {&offsets, &tokens, &places}) EXPECT_TRUE(y->surroundings_intact());
    return expected.places;
  }

  // All four passes, of which two are the gradients of the other two.
  static void check_rows(const Case& c, bool weighted) {
    SCOPED_TRACE(std::to_string(c.tokens) + " rows of " + std::to_string(c.cols));
    const std::int64_t n = c.assignments();
    const Values place = check_sort(c);
    const Values of_tokens = random_normal(c.tokens * c.cols, dtype());
    const Values of_places = random_normal(n * c.cols, dtype());
    const Values weight = random_normal(n, wide());
    Values spread(n * c.cols), weighted_spread(n * c.cols), dweight(n);
    Values combined(c.tokens * c.cols);
    for (std::int64_t i = 0; i < n; ++i) {
      if (place[i] < 0) continue;
      const auto row = static_cast<std::int64_t>(place[i]) * c.cols;
      const std::int64_t own = i / c.assigned * c.cols;
      for (std::int64_t j = 0; j < c.cols; ++j) {
        spread[row + j] = of_tokens[own + j];
        weighted_spread[row + j] = of_tokens[own + j] * (weighted ? weight[i] : 1);
        combined[own + j] += of_places[row + j] * (weighted ? weight[i] : 1);
        dweight[i] += of_tokens[own + j] * of_places[row + j];
      }
    }
    TestTensor places(backend(), DType::kInt32, c.tokens, c.assigned, place);
    TestTensor x(backend(), dtype(), c.tokens, c.cols, of_tokens, c.layout);
    TestTensor y(backend(), dtype(), n, c.cols, of_places, c.layout);
    TestTensor weights(backend(), wide(), c.tokens, c.assigned, weight);
    TestTensor moved(backend(), dtype(), n, c.cols, c.layout);
    TestTensor sum(backend(), dtype(), c.tokens, c.cols, c.layout);
    TestTensor dx(backend(), dtype(), n, c.cols, c.layout);
    TestTensor dweights(backend(), wide(), c.tokens, c.assigned);
    const TensorView used = weighted ? weights.view() : TensorView{};
    moe_permute_forward(backend().context(),
                        {.x = x.view(), .places = places.view(), .y = moved.view()});
    EXPECT_EQ(moved.values(), spread);
    moe_unpermute_forward(
        backend().context(),
        {.x = y.view(), .places = places.view(), .weights = used, .y = sum.view()});
    EXPECT_TRUE(close(dtype(), sum.values(), combined, 40));
    moe_unpermute_backward(backend().context(),
                           {.dy = x.view(),
                            .x = y.view(),
                            .places = places.view(),
                            .weights = used,
                            .dx = dx.view(),
                            .dweights = weighted ? dweights.view() : TensorView{}});
    EXPECT_TRUE(close(dtype(), dx.values(), weighted_spread, 40));
    if (weighted) {
      EXPECT_TRUE(close(wide(), dweights.values(), dweight, 400));
    }
    for (TestTensor* z : {&moved, &sum, &dx, &dweights}) EXPECT_TRUE(z->surroundings_intact());
  }
};

INSTANTIATE_TEST_SUITE_P(on, MoeDispatch, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(MoeDispatch, sorts) {
  if (dtype() != DType::kFloat32) GTEST_SKIP() << "integers have no dtype";
  for (const std::int64_t capacity : {0, 1, 7}) {
    for (const std::int64_t experts : {1, 3, 40, 4096}) {
      for (const std::int64_t tokens : {0, 1, 33, 700}) {
        check_sort({tokens, 3, experts, capacity});
      }
    }
  }
  check_sort({9000, 2, 5, 1000});
}

TEST_P(MoeDispatch, rows) {
  for (const std::int64_t cols : {1, 7, 16, 640, 1031}) {
    for (const bool weighted : {false, true}) {
      check_rows({.tokens = 21, .assigned = 2, .experts = 6, .capacity = 5, .cols = cols},
                 weighted);
    }
  }
  check_rows({.tokens = 9, .assigned = 16, .experts = 30, .cols = 24, .layout = {1, 3}}, true);
  check_rows({.tokens = 1, .assigned = 1, .experts = 1, .cols = 33}, true);
}

TEST_P(MoeDispatch, bad_arguments) {
  TestTensor x(backend(), dtype(), 4, 8, random_normal(32, dtype()));
  TestTensor y(backend(), dtype(), 8, 8);
  TestTensor places(backend(), DType::kInt32, 4, 2, Values{0, 1, 2, 3, 4, 5, 6, 7});
  const MoePermuteForward good{.x = x.view(), .places = places.view(), .y = y.view()};
  const auto refusal = [&](auto&& change) {
    MoePermuteForward bad = good;
    change(bad);
    return error_of([&] { moe_permute_forward(backend().context(), bad); });
  };
  EXPECT_EQ(refusal([&](auto& a) { a.y = x.view(); }),
            "moe_permute: y has shape (4, 8), expected (8, 8) (the elements of places)");
  EXPECT_EQ(refusal([&](auto& a) { a.x = y.view(); }),
            "moe_permute: x has shape (8, 8), expected (4, 8) (the rows of places)");
  const auto refused_sort = [&](std::int64_t experts, std::int64_t capacity) {
    MoeSort bad{};
    bad.indices = places.view();
    bad.experts = experts;
    bad.capacity = capacity;
    return error_of([&] { moe_sort(backend().context(), bad); });
  };
  EXPECT_EQ(refused_sort(4097, 0), "moe_sort: num_experts is 4097, expected 1 to 4096");
  EXPECT_EQ(refused_sort(2, -1), "moe_sort: capacity is -1, expected 0 (none) or more");
  EXPECT_TRUE(y.untouched());
}

}  // namespace
}  // namespace transformer_kernels::testing
