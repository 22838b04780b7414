// SPDX-License-Identifier: MIT
// The formulas of TFK_ACTIVATIONS in long double, and their derivatives. The functions that they
// use are defined here; nothing is shared with the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "transformer_kernels/pointwise/pointwise.h"

namespace transformer_kernels::testing {

// A number and its derivative with respect to x.
struct Dual {
  long double value;
  long double slope = 0;

  Dual(long double number, long double derivative = 0) : value(number), slope(derivative) {}
};

inline Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.slope + b.slope}; }
inline Dual operator*(Dual a, Dual b) {
  return {a.value * b.value, a.value * b.slope + a.slope * b.value};
}
inline Dual operator/(Dual a, long double divisor) {
  return {a.value / divisor, a.slope / divisor};
}
inline Dual tanh(Dual x) {
  const long double y = std::tanh(x.value);
  return {y, (1 - y * y) * x.slope};
}
inline Dual sigmoid(Dual x) {
  const long double y = 1 / (1 + std::exp(-x.value));
  return {y, y / (1 + std::exp(x.value)) * x.slope};
}
// erfc keeps its digits where erf comes near -1.
inline Dual normal_cdf(Dual x) {
  const long double density =
      std::exp(-x.value * x.value / 2) / std::sqrt(2 * std::numbers::pi_v<long double>);
  return {std::erfc(-x.value / std::sqrt(2.0L)) / 2, density * x.slope};
}
inline Dual softplus(Dual x) {
  const long double y = std::max(x.value, 0.0L) + std::log1p(std::exp(-std::abs(x.value)));
  return {y, sigmoid(x).value * x.slope};
}
inline Dual positive(Dual x) { return x.value <= 0 ? Dual(0) : x; }

// A formula's name is that of its functor.
namespace formulas {
inline constexpr long double pi = std::numbers::pi_v<long double>;
using std::sqrt;

#define TFK_FORMULA(activation, formula) \
  inline Dual activation(Dual x) { return formula; }
TFK_ACTIVATIONS(TFK_FORMULA)
#undef TFK_FORMULA
}  // namespace formulas

// The gate of a gated op, or the whole of another.
inline Dual activation(Pointwise op, Dual x) {
#define TFK_CASE(enumerator, name, activation, gated) \
  case Pointwise::enumerator: return formulas::activation(x);
  switch (op) { TFK_POINTWISE_OPS(TFK_CASE) }
#undef TFK_CASE
  return x;
}

}  // namespace transformer_kernels::testing
