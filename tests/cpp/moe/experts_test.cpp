// SPDX-License-Identifier: MIT
#include "transformer_kernels/moe/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend_test.h"
#include "error_of.h"
#include "reference.h"
#include "test_tensor.h"
#include "transformer_kernels/moe/dispatch.h"

namespace transformer_kernels::testing {
namespace {

struct Case {
  Pointwise activation;
  bool biased;
  std::int64_t capacity;
};
constexpr Case kCases[] = {{Pointwise::kReGlu, false, 0},
                           {Pointwise::kReGlu, true, 2},
                           {Pointwise::kReluSquared, true, 0},
                           {Pointwise::kReluSquared, false, 3}};
constexpr std::int64_t kTokens = 7, kAssigned = 2, kExperts = 4, kTerms = 3, kHidden = 4, kCols = 3;
constexpr std::int64_t kPlaces = kTokens * kAssigned;

// Numbers so small that all products and sums are below 256, and thus exact in every dtype.
Values small(std::int64_t count) {
  std::uniform_int_distribution<int> number(-1, 1);
  Values values(count);
  for (double& v : values) v = number(random_engine());
  return values;
}

// The backward pass of what a forward pass kept, without results.
MoeExpertsBackward backward_of(const MoeExpertsForward& forward, const TensorView& dy) {
  return {.dy = dy,
          .x = forward.x,
          .weights = forward.weights,
          .offsets = forward.offsets,
          .tokens = forward.tokens,
          .places = forward.places,
          .weight = forward.weight,
          .up_weight = forward.up_weight,
          .down_weight = forward.down_weight,
          .down_bias = forward.down_bias,
          .activation = forward.activation,
          .gate = forward.gate,
          .up = forward.up};
}

TensorView by_experts(const TensorView& view, std::int64_t rows, std::int64_t cols) {
  return TensorView::contiguous(view.data, view.dtype, view.device, {kExperts, rows, cols});
}
TensorView vectors(const TensorView& view, std::int64_t cols) {
  return TensorView::contiguous(view.data, view.dtype, view.device, {kExperts, cols});
}

double activated(Pointwise f, double gate, double up) {
  const double positive = std::max(gate, 0.0);
  return f == Pointwise::kReGlu ? positive * up : positive * positive;
}

// The tensors of one call, and the same numbers in float64.
struct Call {
  Case c;
  bool gated = is_gated_case();
  Values indices{}, x = small(kTokens * kTerms), weights = small(kPlaces),
                    weight = small(kExperts * kHidden * kTerms), up_weight = small(weight.size()),
                    bias = small(kExperts * kHidden), up_bias = small(bias.size()),
                    down_weight = small(kExperts * kCols * kHidden),
                    down_bias = small(kExperts * kCols);

  bool is_gated_case() const { return c.activation == Pointwise::kReGlu; }

  // One product of an expert before the activation.
  double product(const Values& w, const Values& b, std::int64_t t, std::int64_t e,
                 std::int64_t f) const {
    double sum = c.biased ? b[e * kHidden + f] : 0;
    for (std::int64_t k = 0; k < kTerms; ++k) {
      sum += x[t * kTerms + k] * w[(e * kHidden + f) * kTerms + k];
    }
    return sum;
  }

  // y by a loop over tokens; an assignment without a place adds nothing.
  Values forward(const Values& places) const {
    Values y(kTokens * kCols);
    for (std::int64_t i = 0; i < kPlaces; ++i) {
      if (places[i] < 0) continue;
      const std::int64_t t = i / kAssigned, e = static_cast<std::int64_t>(indices[i]);
      for (std::int64_t n = 0; n < kCols; ++n) {
        double row = c.biased ? down_bias[e * kCols + n] : 0;
        for (std::int64_t f = 0; f < kHidden; ++f) {
          const double h = activated(c.activation, product(weight, bias, t, e, f),
                                     gated ? product(up_weight, up_bias, t, e, f) : 0);
          row += h * down_weight[(e * kCols + n) * kHidden + f];
        }
        y[t * kCols + n] += weights[i] * row;
      }
    }
    return y;
  }
};

class MoeExperts : public BackendTest {
 protected:
  static DType wide() { return dtype() == DType::kFloat64 ? dtype() : DType::kFloat32; }
};

INSTANTIATE_TEST_SUITE_P(on, MoeExperts, all_backends_and_dtypes(), name_of_backend_test);

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST_P(MoeExperts, both_passes_are_those_of_a_loop) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(name_of(c.activation)) + (c.biased ? ", bias" : ""));
    Call call{c};
    std::uniform_int_distribution<int> expert(0, kExperts - 1);
    for (std::int64_t i = 0; i < kPlaces; ++i) call.indices.push_back(expert(random_engine()));
    const auto made = [](const Values& values, DType of) {
      return TestTensor(backend(), of, 1, std::ssize(values), values);
    };
    const TestTensor indices(backend(), DType::kInt32, kTokens, kAssigned, call.indices);
    TestTensor offsets(backend(), DType::kInt32, 1, kExperts + 1);
    TestTensor tokens(backend(), DType::kInt32, 1, kPlaces);
    TestTensor places(backend(), DType::kInt32, kTokens, kAssigned);
    const Context context = backend().context();
    moe_sort(context, {.indices = indices.view(),
                       .experts = kExperts,
                       .capacity = c.capacity,
                       .offsets = offsets.vector(),
                       .tokens = tokens.vector(),
                       .places = places.view()});
    const TestTensor x(backend(), dtype(), kTokens, kTerms, call.x);
    const TestTensor weights(backend(), wide(), kTokens, kAssigned, call.weights);
    const TestTensor weight = made(call.weight, dtype()), up_weight = made(call.up_weight, dtype());
    const TestTensor down_weight = made(call.down_weight, dtype());
    const TestTensor bias = made(call.bias, dtype()), up_bias = made(call.up_bias, dtype());
    const TestTensor down_bias = made(call.down_bias, dtype());
    TestTensor gate(backend(), dtype(), kPlaces, kHidden), up(backend(), dtype(), kPlaces, kHidden);
    TestTensor y(backend(), dtype(), kTokens, kCols);
    MoeExpertsForward forward{.x = x.view(),
                              .weights = weights.view(),
                              .offsets = offsets.vector(),
                              .tokens = tokens.vector(),
                              .places = places.view(),
                              .weight = by_experts(weight.view(), kHidden, kTerms),
                              .down_weight = by_experts(down_weight.view(), kCols, kHidden),
                              .activation = c.activation,
                              .gate = gate.view(),
                              .y = y.view()};
    if (call.gated) {
      forward.up_weight = by_experts(up_weight.view(), kHidden, kTerms);
      forward.up = up.view();
    }
    if (c.biased) {
      forward.bias = vectors(bias.view(), kHidden);
      if (call.gated) forward.up_bias = vectors(up_bias.view(), kHidden);
      forward.down_bias = vectors(down_bias.view(), kCols);
    }
    moe_experts_forward(context, forward);
    const Values at = places.values();
    EXPECT_EQ(y.values(), call.forward(at));
    EXPECT_TRUE(y.surroundings_intact());

    const Values dy_values = small(kTokens * kCols);
    const TestTensor dy(backend(), dtype(), kTokens, kCols, dy_values);
    TestTensor dx(backend(), dtype(), kTokens, kTerms),
        dweights(backend(), wide(), kTokens, kAssigned);
    TestTensor dweight(backend(), dtype(), 1, std::ssize(call.weight));
    TestTensor dup_weight(backend(), dtype(), 1, std::ssize(call.weight));
    TestTensor ddown_weight(backend(), dtype(), 1, std::ssize(call.down_weight));
    TestTensor dbias(backend(), dtype(), 1, std::ssize(call.bias));
    TestTensor dup_bias(backend(), dtype(), 1, std::ssize(call.bias));
    TestTensor ddown_bias(backend(), dtype(), 1, std::ssize(call.down_bias));
    MoeExpertsBackward backward = backward_of(forward, dy.view());
    backward.dx = dx.view();
    backward.dweights = dweights.view();
    backward.dweight = by_experts(dweight.view(), kHidden, kTerms);
    backward.ddown_weight = by_experts(ddown_weight.view(), kCols, kHidden);
    if (call.gated) backward.dup_weight = by_experts(dup_weight.view(), kHidden, kTerms);
    if (c.biased) {
      backward.dbias = vectors(dbias.view(), kHidden);
      if (call.gated) backward.dup_bias = vectors(dup_bias.view(), kHidden);
      backward.ddown_bias = vectors(ddown_bias.view(), kCols);
    }
    moe_experts_backward(context, backward);

    // y is linear in these, so that its derivative in a direction is y with the direction in place.
    const auto check_linear = [&](Values Call::*which, const Values& gradient, bool affine) {
      Call moved = call;
      moved.*which = small((call.*which).size());
      Values expected = moved.forward(at);
      if (affine) {
        Call none = call;
        none.*which = Values((call.*which).size());
        const Values constant = none.forward(at);
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] -= constant[i];
      }
      EXPECT_EQ(dot(gradient, moved.*which), dot(dy_values, expected));
    };
    check_linear(&Call::weights, dweights.values(), false);
    check_linear(&Call::down_weight, ddown_weight.values(), true);
    if (c.biased) check_linear(&Call::down_bias, ddown_bias.values(), true);
    if (call.gated) {
      check_linear(&Call::up_weight, dup_weight.values(), true);
      if (c.biased) check_linear(&Call::up_bias, dup_bias.values(), true);
    }
    // The function has degree 1 or 2 in all it multiplies x with: Euler's rule for x and the first
    // weights, where no bias is added.
    if (!c.biased) {
      const double degree = 2;
      EXPECT_EQ(dot(dx.values(), call.x), degree * dot(dy_values, call.forward(at)));
      const double of_gate = dot(dweight.values(), call.weight);
      EXPECT_EQ(of_gate, (call.gated ? 1 : 2) * dot(dy_values, call.forward(at)));
    } else {
      double sum = 0;  // the bias is one more column of the weight, beside an x of 1
      for (std::int64_t i = 0; i < std::ssize(call.bias); ++i) {
        sum += dbias.values()[i] * call.bias[i];
      }
      sum += dot(dweight.values(), call.weight);
      EXPECT_EQ(sum, (call.gated ? 1 : 2) * dot(dy_values, [&] {
                       Call no_last = call;
                       no_last.down_bias = Values(call.down_bias.size());
                       return no_last.forward(at);
                     }()));
    }
  }
}

// Gate and up in one weight, passed as two views of it, give what two weights give.
TEST_P(MoeExperts, a_packed_weight_is_two_views) {
  const Context context = backend().context();
  const Values weight_values = small(kExperts * 2 * kHidden * kTerms);
  const TestTensor x(backend(), dtype(), kTokens, kTerms, small(kTokens * kTerms));
  const TestTensor dy(backend(), dtype(), kTokens, kCols, small(kTokens * kCols));
  const TestTensor weights(backend(), wide(), kTokens, 1, small(kTokens));
  const TestTensor down(backend(), dtype(), 1, kExperts * kCols * kHidden,
                        small(kExperts * kCols * kHidden));
  const TestTensor packed(backend(), dtype(), 1, std::ssize(weight_values), weight_values);
  Values indices(kTokens), halves[2];
  for (std::int64_t t = 0; t < kTokens; ++t) indices[t] = static_cast<double>(t % kExperts);
  for (std::int64_t i = 0; i < std::ssize(weight_values); ++i) {
    halves[i / (kHidden * kTerms) % 2].push_back(weight_values[i]);
  }
  const TestTensor index(backend(), DType::kInt32, kTokens, 1, indices);
  TestTensor offsets(backend(), DType::kInt32, 1, kExperts + 1);
  TestTensor tokens(backend(), DType::kInt32, 1, kTokens);
  TestTensor places(backend(), DType::kInt32, kTokens, 1);
  moe_sort(context, {.indices = index.view(),
                     .experts = kExperts,
                     .offsets = offsets.vector(),
                     .tokens = tokens.vector(),
                     .places = places.view()});
  const auto half = [](const TensorView& both, int dimension, bool second) {
    TensorView view = both;
    view.sizes[dimension] /= 2;
    if (second) {
      view.data = static_cast<std::byte*>(view.data) +
                  view.sizes[dimension] * view.strides[dimension] * size_of(view.dtype);
    }
    return view;
  };
  Values results[2][3];
  for (const bool in_one : {false, true}) {
    const TestTensor first(backend(), dtype(), 1, std::ssize(halves[0]), halves[0]);
    const TestTensor second(backend(), dtype(), 1, std::ssize(halves[1]), halves[1]);
    const TensorView both = by_experts(packed.view(), 2 * kHidden, kTerms);
    TestTensor y(backend(), dtype(), kTokens, kCols), dx(backend(), dtype(), kTokens, kTerms);
    TestTensor kept(backend(), dtype(), kTokens, 2 * kHidden);
    TestTensor dpacked(backend(), dtype(), 1, std::ssize(weight_values));
    TestTensor dfirst(backend(), dtype(), 1, std::ssize(halves[0]));
    TestTensor dsecond(backend(), dtype(), 1, std::ssize(halves[1]));
    const auto of = [&](const TestTensor& own, bool is_second) {
      return in_one ? half(both, 1, is_second) : by_experts(own.view(), kHidden, kTerms);
    };
    const auto gradient = [&](const TestTensor& own, bool is_second) {
      return in_one ? half(by_experts(dpacked.view(), 2 * kHidden, kTerms), 1, is_second)
                    : by_experts(own.view(), kHidden, kTerms);
    };
    MoeExpertsForward forward{.x = x.view(),
                              .weights = weights.view(),
                              .offsets = offsets.vector(),
                              .tokens = tokens.vector(),
                              .places = places.view(),
                              .weight = of(first, false),
                              .up_weight = of(second, true),
                              .down_weight = by_experts(down.view(), kCols, kHidden),
                              .activation = Pointwise::kReGlu,
                              .gate = half(kept.view(), 1, false),
                              .up = half(kept.view(), 1, true),
                              .y = y.view()};
    moe_experts_forward(context, forward);
    MoeExpertsBackward backward = backward_of(forward, dy.view());
    backward.dx = dx.view();
    backward.dweight = gradient(dfirst, false);
    backward.dup_weight = gradient(dsecond, true);
    moe_experts_backward(context, backward);
    results[in_one][0] = y.values();
    results[in_one][1] = dx.values();
    if (in_one) {
      results[1][2] = dpacked.values();
    } else {
      for (std::int64_t e = 0; e < kExperts; ++e) {
        for (TestTensor* own : {&dfirst, &dsecond}) {
          const Values values = own->values();
          const auto begin = values.begin() + e * kHidden * kTerms;
          results[0][2].insert(results[0][2].end(), begin, begin + kHidden * kTerms);
        }
      }
    }
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(results[0][i], results[1][i]) << i;
}

TEST(MoeExpertsErrors, name_the_argument) {
  const Context context{};
  float memory[64] = {};
  std::int32_t numbers[8] = {};
  const auto floats = [&](std::initializer_list<std::int64_t> shape) {
    return TensorView::contiguous(memory, DType::kFloat32, {}, shape);
  };
  const auto integers = [&](std::initializer_list<std::int64_t> shape) {
    return TensorView::contiguous(numbers, DType::kInt32, {}, shape);
  };
  MoeExpertsForward a{.x = floats({2, 3}),
                      .weights = floats({2, 1}),
                      .offsets = integers({2}),
                      .tokens = integers({2}),
                      .places = integers({2, 1}),
                      .weight = floats({1, 4, 3}),
                      .down_weight = floats({1, 2, 4}),
                      .activation = Pointwise::kSwiGlu,
                      .y = floats({2, 2})};
  const auto error = [&] { return error_of([&] { moe_experts_forward(context, a); }); };
  EXPECT_EQ(error(), "moe_experts: up_weight is missing, expected it (swiglu is gated)");
  a.activation = Pointwise::kSilu;
  EXPECT_EQ(error(), "moe_experts: y overlaps x, expected memory of its own");
  a.weights = floats({2, 2});
  EXPECT_EQ(error(),
            "moe_experts: weights has shape (2, 2), expected (2, 1) (the shape of places)");
}

}  // namespace
}  // namespace transformer_kernels::testing
