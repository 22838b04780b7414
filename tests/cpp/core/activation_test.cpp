// SPDX-License-Identifier: MIT
// The activations on single numbers, of which a matrix product's epilogue may have a few; the
// pointwise ops test them on vectors.
#include "core/math/activation.h"

#include <gtest/gtest.h>

#include "pointwise/pointwise_reference.h"
#include "pointwise/problem.h"

namespace transformer_kernels::testing {
namespace {

template <Pointwise kOp, class A>
void check_range(long double unit) {
  using Activation = typename PointwiseOp<kOp>::Activation;
  for (int i = -30 * 64; i < 30 * 64; ++i) {
    const A x = static_cast<A>(i) / 64;
    const auto [value, slope] = Activation::value_and_slope(math::Accurate{}, x);
    const Dual exact = activation(kOp, {x, 1});
    const auto allowed = [&](long double number) {
      return 8 * unit * std::max(std::abs(number), 1.0L);
    };
    ASSERT_LE(std::abs(value - exact.value), allowed(exact.value)) << x;
    ASSERT_LE(std::abs(slope - exact.slope), allowed(exact.slope)) << x;
    ASSERT_EQ(value, Activation::value(math::Accurate{}, x));
  }
}

TEST(Activation, reference_has_the_slopes_of_its_functions) {
  for (Dual (*f)(Dual) : {tanh, sigmoid, normal_cdf, softplus, positive}) {
    for (long double x : {-3.0L, -0.25L, 0.75L, 2.0L, 5.0L}) {
      const long double h = 0x1p-20L;
      const long double slope = (f(x + h).value - f(x - h).value) / (2 * h);
      EXPECT_NEAR(f({x, 1}).slope, slope, 1e-11) << x;
      EXPECT_EQ(f({x, 3}).slope, 3 * f({x, 1}).slope) << x;
    }
  }
}

TEST(Activation, of_plain_numbers) {
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (check_range<static_cast<Pointwise>(kIndex), float>(0x1p-24L), ...);
    (check_range<static_cast<Pointwise>(kIndex), double>(0x1p-53L), ...);
  }
  (std::make_index_sequence<kPointwiseCount>());
}

}  // namespace
}  // namespace transformer_kernels::testing
