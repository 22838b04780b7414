// SPDX-License-Identifier: MIT
// The activations as formulas, one line each, evaluated in long double together with their
// derivatives: nothing here is shared with the library.
#pragma once

#include <cmath>
#include <string_view>

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
  const long double density = std::exp(-x.value * x.value / 2) / std::sqrt(2 * std::acos(-1.0L));
  return {std::erfc(-x.value / std::sqrt(2.0L)) / 2, density * x.slope};
}
inline Dual positive(Dual x) { return x.value <= 0 ? Dual(0) : x; }

inline Dual gelu(Dual x) { return x * normal_cdf(x); }
inline Dual gelu_tanh(Dual x) {
  const Dual u = std::sqrt(2 / std::acos(-1.0L)) * (x + 0.044715L * x * x * x);
  return 0.5L * x * (1 + tanh(u));
}

// The gate of a gated op, or the whole of another.
inline Dual activation(Pointwise op, Dual x) {
  switch (op) {
    case Pointwise::kGelu:
    case Pointwise::kGeGlu: return gelu(x);
    case Pointwise::kGeluTanh:
    case Pointwise::kGeGluTanh: return gelu_tanh(x);
    case Pointwise::kSilu:
    case Pointwise::kSwiGlu: return x * sigmoid(x);
    case Pointwise::kRelu:
    case Pointwise::kReGlu: return positive(x);
    case Pointwise::kReluSquared: return positive(x) * positive(x);
    case Pointwise::kQuickGelu: return x * sigmoid(1.702L * x);
  }
  return x;
}

}  // namespace transformer_kernels::testing
