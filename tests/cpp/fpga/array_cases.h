// SPDX-License-Identifier: MIT
// Attention of random numbers in float, with the formula in double as its reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "numbers.h"
#include "transformer_kernels/attention/attention.h"

namespace transformer_kernels::testing {

struct ArrayShape {
  std::int64_t batch = 1;
  std::int64_t queries = 5;
  std::int64_t keys = 7;
  std::int64_t heads = 2;
  std::int64_t kv_heads = 2;
  std::int64_t dim = 16;
};

struct ArrayCase {
  explicit ArrayCase(ArrayShape s, double key_mean = 0)
      : shape(s),
        q(fill(s.batch * s.queries * s.heads * s.dim, 0)),
        k(fill(s.batch * s.keys * s.kv_heads * s.dim, key_mean)),
        v(fill(s.batch * s.keys * s.kv_heads * s.dim, 0)),
        out(q.size(), 77.0F),
        lse(s.batch * s.heads * s.queries, 77.0F) {}

  static std::vector<float> fill(std::int64_t count, double mean) {
    const Values values = random_normal(count, DType::kFloat32, mean);
    return {values.begin(), values.end()};
  }

  AttentionForward arguments() {
    const auto view = [&](std::vector<float>& data, std::int64_t rows, std::int64_t heads) {
      return TensorView::contiguous(data.data(), DType::kFloat32, {},
                                    {shape.batch, rows, heads, shape.dim});
    };
    AttentionForward a{.inputs = {.q = view(q, shape.queries, shape.heads),
                                  .k = view(k, shape.keys, shape.kv_heads),
                                  .v = view(v, shape.keys, shape.kv_heads)},
                       .out = view(out, shape.queries, shape.heads)};
    a.lse = TensorView::contiguous(lse.data(), DType::kFloat32, {},
                                   {shape.batch, shape.heads, shape.queries});
    return a;
  }

  // Query i sees keys j <= i + offset. Results in the order of out and of lse.
  void reference(double scale, std::int64_t offset, Values& wanted, Values& wanted_lse) const {
    const ArrayShape& s = shape;
    wanted.assign(out.size(), 0);
    wanted_lse.assign(lse.size(), -kInfinity);
    const std::int64_t group = s.heads / s.kv_heads;
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        for (std::int64_t i = 0; i < s.queries; ++i) {
          const float* const row = &q[((b * s.queries + i) * s.heads + h) * s.dim];
          double sum = 0;
          Values mix(s.dim, 0.0);
          for (std::int64_t j = 0; j <= std::min(i + offset, s.keys - 1); ++j) {
            const std::int64_t at = ((b * s.keys + j) * s.kv_heads + h / group) * s.dim;
            double score = 0;
            for (std::int64_t d = 0; d < s.dim; ++d) score += double{row[d]} * k[at + d];
            const double power = std::exp(score * scale);
            sum += power;
            for (std::int64_t d = 0; d < s.dim; ++d) mix[d] += power * v[at + d];
          }
          if (sum == 0) continue;
          wanted_lse[(b * s.heads + h) * s.queries + i] = std::log(sum);
          for (std::int64_t d = 0; d < s.dim; ++d) {
            wanted[((b * s.queries + i) * s.heads + h) * s.dim + d] = mix[d] / sum;
          }
        }
      }
    }
  }

  ArrayShape shape;
  std::vector<float> q, k, v, out, lse;
};

// The norm of the difference, relative to the norm of what is wanted.
template <class Found>
double relative_error(const Found& found, const Values& wanted) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    difference += (found[i] - wanted[i]) * (found[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

}  // namespace transformer_kernels::testing
