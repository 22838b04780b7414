// SPDX-License-Identifier: MIT
// Scores of tokens with fresh numbers, and the formulas of the public header in long double.
#pragma once

#include <algorithm>

#include "loss/cross_entropy_cases.h"
#include "reference.h"
#include "test_tensor.h"
#include "transformer_kernels/loss/token_log_probs.h"

namespace transformer_kernels::testing {

struct ScoreOptions {
  double softcap = 0;
  bool narrow_tokens = false;
  bool one_dentropy = false;  // for all rows, with a divisor
  bool accumulate = false;
  bool in_place = false;
  Layout layout{};
};

// The logits of a call and what reaches its backward pass.
struct ScoreInputs {
  Matrix m;
  ScoreOptions o;
  Values x, dlog_probs, dentropy, held;
  std::vector<std::int64_t> tokens;
  double divisor = 4;

  long double capped(double value) const {
    return o.softcap > 0 ? o.softcap * std::tanh(value / static_cast<long double>(o.softcap))
                         : value;
  }
};

struct ScoreReference {
  Values log_probs, entropy, accuracy, dx;
};

inline ScoreReference reference_of(const ScoreInputs& in) {
  const auto [rows, cols] = in.m;
  ScoreReference out{Values(rows), Values(rows), Values(rows), Values(in.x.size())};
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* const x = in.x.data() + r * cols;
    double* const dx = out.dx.data() + r * cols;
    if (in.o.accumulate) std::copy_n(in.held.data() + r * cols, cols, dx);
    const std::int64_t token = in.tokens[r];
    if (token == kIgnored) continue;
    long double top = -kInfinity;
    for (std::int64_t c = 0; c < cols; ++c) top = std::max(top, in.capped(x[c]));
    long double power = 0;
    for (std::int64_t c = 0; c < cols; ++c) power += std::exp(in.capped(x[c]) - top);
    const auto log_p = [&](std::int64_t c) { return in.capped(x[c]) - top - std::log(power); };
    long double entropy = 0;
    for (std::int64_t c = 0; c < cols; ++c) {
      if (const long double p = std::exp(log_p(c)); p != 0) entropy -= p * log_p(c);
    }
    out.log_probs[r] = static_cast<double>(log_p(token));
    out.entropy[r] = static_cast<double>(entropy);
    out.accuracy[r] = std::max_element(x, x + cols) - x == token;
    const double dentropy = in.o.one_dentropy ? in.dentropy[0] / in.divisor : in.dentropy[r];
    for (std::int64_t c = 0; c < cols; ++c) {
      const long double p = std::exp(log_p(c));
      long double g = in.dlog_probs[r] * ((c == token) - p);
      if (p != 0) g -= dentropy * p * (log_p(c) + entropy);
      const long double ratio = in.o.softcap > 0 ? in.capped(x[c]) / in.o.softcap : 0;
      dx[c] += static_cast<double>(g * (1 - ratio * ratio));
    }
  }
  return out;
}

inline ScoreInputs random_scores(Matrix m, DType dtype, const ScoreOptions& o) {
  const DType wide = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
  ScoreInputs in{m,
                 o,
                 random_normal(m.rows * m.cols, dtype, 0, 3),
                 random_normal(m.rows, wide),
                 random_normal(o.one_dentropy ? 1 : m.rows, wide),
                 random_normal(m.rows * m.cols, dtype),
                 {}};
  std::uniform_int_distribution<std::int64_t> token(0, m.cols - 1);
  std::bernoulli_distribution ignored(0.2);
  std::bernoulli_distribution likely(0.3);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const auto row = in.x.begin() + r * m.cols;
    const std::int64_t best = std::max_element(row, row + m.cols) - row;
    const std::int64_t any = likely(random_engine()) ? best : token(random_engine());
    in.tokens.push_back(ignored(random_engine()) ? kIgnored : any);
  }
  return in;
}

}  // namespace transformer_kernels::testing
