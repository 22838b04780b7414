// SPDX-License-Identifier: MIT
// Attention as its definition reads, one score at a time, in double. Nothing here is shared with
// the library, not even the random bits of dropout.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "numbers.h"
#include "philox_reference.h"

namespace transformer_kernels::testing {

struct AttentionShape {
  std::int64_t batch, queries, keys, heads, kv_heads, dim, value_dim;

  std::int64_t rows() const { return batch * queries * heads; }
  std::int64_t kv_rows() const { return batch * keys * kv_heads; }
};

struct AttentionNumbers {
  double scale = 1;
  double softcap = 0;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  bool bottom_right = true;
  double dropout = 0;
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
};

// Whether element `index` is dropped.
inline bool is_dropped(const AttentionNumbers& n, std::uint64_t index) {
  return random_number(n.seed, n.offset, index) < std::lround(n.dropout * 65536);
}

// A number with the sum of the sizes of what it is the sum of.
struct Sum {
  double value = 0;
  double size = 0;

  void add(double term) {
    value += term;
    size += std::abs(term);
  }
};

struct AttentionReference {
  Values out, lse;
  double extent = 1;  // the largest |score|, and at least 1

  // Gradients, with the largest sum of sizes in each.
  Values dq, dk, dv, dbias, dsinks;
  double dq_size = 0, dk_size = 0, dv_size = 0, dbias_size = 0, dsinks_size = 0;
};

// Everything at full size; `bias`, `slopes` (B, H), `sinks` and `mask` may be empty. Layouts are
// those of the public header.
struct AttentionOperands {
  AttentionShape s;
  AttentionNumbers n;
  Values q, k, v, bias, mask, slopes, sinks;
  // The dtype that every step from products to gradients is rounded to, as PyTorch's operations do.
  DType rounding = DType::kFloat64;

  double step(double value) const { return rounded_to(rounding, value); }
  std::int64_t row(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return (b * s.queries + i) * s.heads + h;
  }
  std::int64_t kv_row(std::int64_t b, std::int64_t j, std::int64_t h) const {
    return (b * s.keys + j) * s.kv_heads + h / (s.heads / s.kv_heads);
  }
  std::int64_t statistic(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return (b * s.heads + h) * s.queries + i;
  }
  std::int64_t score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return ((b * s.heads + h) * s.queries + i) * s.keys + j;
  }

  double product(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t d = 0; d < s.dim; ++d) {
      sum += q[row(b, i, h) * s.dim + d] * k[kv_row(b, j, h) * s.dim + d];
    }
    return step(step(sum) * n.scale);
  }

  bool sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t middle = i + (n.bottom_right ? s.keys - s.queries : 0);
    const bool before = n.window_left < 0 || j >= middle - n.window_left;
    const bool after = n.window_right < 0 || j <= middle + n.window_right;
    return before && after && (mask.empty() || mask[score(b, h, i, j)] != 0);
  }

  double z(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (!sees(b, h, i, j)) return -kInfinity;
    double value = product(b, h, i, j);
    if (n.softcap != 0) value = step(n.softcap * step(std::tanh(value / n.softcap)));
    const std::int64_t middle = i + (n.bottom_right ? s.keys - s.queries : 0);
    if (!slopes.empty()) {
      const double distance = std::abs(static_cast<double>(j - middle));
      value = step(value - step(slopes[b * s.heads + h] * distance));
    }
    if (!bias.empty()) value = step(value + bias[score(b, h, i, j)]);
    return value;
  }

  double factor(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (n.dropout == 0) return 1;
    const std::int64_t pitch = (s.keys + 7) / 8 * 8;
    if (is_dropped(n, static_cast<std::uint64_t>(statistic(b, i, h) * pitch + j))) return 0;
    return 65536.0 / (65536 - std::lround(n.dropout * 65536));
  }

  template <class Body>
  void for_each_query(Body&& body) const {
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        for (std::int64_t i = 0; i < s.queries; ++i) body(b, h, i);
      }
    }
  }
};

inline AttentionReference attention_reference(const AttentionOperands& a) {
  const AttentionShape& s = a.s;
  AttentionReference r;
  r.out.assign(s.rows() * s.value_dim, 0);
  r.lse.assign(s.rows(), -kInfinity);
  a.for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t i) {
    Values z(s.keys);
    double top = a.sinks.empty() ? -kInfinity : a.sinks[h];
    for (std::int64_t j = 0; j < s.keys; ++j) {
      z[j] = a.z(b, h, i, j);
      top = std::max(top, z[j]);
      if (std::isfinite(z[j])) r.extent = std::max(r.extent, std::abs(z[j]));
    }
    if (top == -kInfinity) return;
    double sum = a.sinks.empty() ? 0 : std::exp(a.sinks[h] - top);
    for (double value : z) sum += std::exp(value - top);
    r.lse[a.statistic(b, i, h)] = top + std::log(sum);
    for (std::int64_t j = 0; j < s.keys; ++j) {
      const double p = a.step(a.step(std::exp(z[j] - top) / sum) * a.factor(b, h, i, j));
      for (std::int64_t d = 0; d < s.value_dim; ++d) {
        r.out[a.row(b, i, h) * s.value_dim + d] += p * a.v[a.kv_row(b, j, h) * s.value_dim + d];
      }
    }
  });
  for (double& value : r.out) value = a.step(value);
  return r;
}

// Moves the values of sums out, and tells the largest of their sizes.
inline double finish(const AttentionOperands& a, const std::vector<Sum>& sums, Values& values) {
  double largest = 0;
  for (const Sum& sum : sums) {
    values.push_back(a.step(sum.value));
    largest = std::max(largest, sum.size);
  }
  return largest;
}

// `out` and `lse` are given, as they are to the op; `dlse` may be empty.
inline AttentionReference attention_gradients(const AttentionOperands& a, const Values& out,
                                              const Values& lse, const Values& dout,
                                              const Values& dlse) {
  const AttentionShape& s = a.s;
  AttentionReference r;
  std::vector<Sum> dq(a.q.size()), dk(a.k.size()), dv(a.v.size()), dbias(a.bias.size());
  std::vector<Sum> dsinks(a.sinks.size());
  a.for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t row = a.row(b, i, h);
    const std::int64_t statistic = a.statistic(b, i, h);
    Sum delta;
    if (!dlse.empty()) delta.add(-dlse[statistic]);
    for (std::int64_t d = 0; d < s.value_dim; ++d) {
      delta.add(out[row * s.value_dim + d] * dout[row * s.value_dim + d]);
    }
    if (lse[statistic] == -kInfinity) return;
    if (!a.sinks.empty()) {
      const double p = std::exp(a.sinks[h] - lse[statistic]);
      dsinks[h].value -= p * delta.value;
      dsinks[h].size += p * delta.size;
    }
    for (std::int64_t j = 0; j < s.keys; ++j) {
      const double z = a.z(b, h, i, j);
      if (z == -kInfinity) continue;
      r.extent = std::max(r.extent, std::abs(z));
      const std::int64_t kv_row = a.kv_row(b, j, h);
      const double p = a.step(std::exp(z - lse[statistic]));
      const double factor = a.factor(b, h, i, j);
      Sum dp;
      for (std::int64_t d = 0; d < s.value_dim; ++d) {
        dp.add(dout[row * s.value_dim + d] * a.v[kv_row * s.value_dim + d]);
        dv[kv_row * s.value_dim + d].add(a.step(p * factor) * dout[row * s.value_dim + d]);
      }
      const double dz = a.step(p * (a.step(factor * a.step(dp.value)) - delta.value));
      const double noise = p * (factor * dp.size + delta.size);
      const double t = a.n.softcap == 0 ? 0 : std::tanh(a.product(b, h, i, j) / a.n.softcap);
      const double ds = a.step(a.step(dz * (1 - t * t)) * a.n.scale);
      if (!a.bias.empty()) dbias[a.score(b, h, i, j)] = {dz, noise};
      for (std::int64_t d = 0; d < s.dim; ++d) {
        Sum& of_q = dq[row * s.dim + d];
        Sum& of_k = dk[kv_row * s.dim + d];
        of_q.value += ds * a.k[kv_row * s.dim + d];
        of_k.value += ds * a.q[row * s.dim + d];
        of_q.size += noise * std::abs(a.n.scale * a.k[kv_row * s.dim + d]);
        of_k.size += noise * std::abs(a.n.scale * a.q[row * s.dim + d]);
      }
    }
  });
  r.dq_size = finish(a, dq, r.dq);
  r.dk_size = finish(a, dk, r.dk);
  r.dv_size = finish(a, dv, r.dv);
  r.dbias_size = finish(a, dbias, r.dbias);
  r.dsinks_size = finish(a, dsinks, r.dsinks);
  return r;
}

}  // namespace transformer_kernels::testing
