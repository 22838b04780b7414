// SPDX-License-Identifier: MIT
// Attention over a cache in float64, and what the caches have to hold afterwards.
#pragma once

#include "attention/decode/cache_run.h"
#include "reference.h"

namespace transformer_kernels::testing {

struct ExpectedOfCache {
  Values out, lse;
  double largest = 0;  // an |out| that the worst rounding of a score could make
};

// One query after the other, over what the caches hold.
inline ExpectedOfCache expected_of(const CacheRun& run) {
  const CacheCase& c = run.c;
  const CacheNumbers keys = run.stored(run.k_cache, run.k_scale);
  const CacheNumbers values = run.stored(run.v_cache, run.v_scale);
  const Values q = run.rotated_q();
  const Values slopes = run.slopes.values();
  const Values sinks = run.sinks.values();
  const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
  ExpectedOfCache found{Values(run.out.values().size()), Values(run.lse.values().size())};
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const std::int64_t kv_head = h / (c.heads / c.kv_heads);
      for (std::int64_t i = 0; i < c.queries; ++i) {
        const std::int64_t row = (b * c.queries + i) * c.heads + h;
        const std::int64_t position = c.total(b) - c.queries + i;
        std::vector<double> z(c.total(b), -kInfinity);
        double top = c.sinks ? sinks[h] : -kInfinity;
        double extent = 1;
        for (std::int64_t j = 0; j < c.total(b); ++j) {
          if ((c.causal && j > position) || (c.left >= 0 && j < position - c.left)) continue;
          double sum = 0;
          for (std::int64_t d = 0; d < c.dim; ++d) {
            sum += q[row * c.dim + d] * keys.values[keys.row(b, j, kv_head) + d];
          }
          z[j] = sum * scale;
          if (c.softcap != 0) z[j] = c.softcap * std::tanh(z[j] / c.softcap);
          if (c.slopes)
            z[j] -= slopes[b * c.heads + h] * static_cast<double>(std::abs(position - j));
          top = std::max(top, z[j]);
          extent = std::max(extent, std::abs(z[j]));
        }
        double total = c.sinks && top != -kInfinity ? std::exp(sinks[h] - top) : 0;
        for (double s : z) total += s == -kInfinity ? 0 : std::exp(s - top);
        for (std::int64_t d = 0; d < c.value_dim; ++d) {
          double sum = 0;
          for (std::int64_t j = 0; j < c.total(b); ++j) {
            if (z[j] == -kInfinity) continue;
            const double value = values.values[values.row(b, j, kv_head) + d];
            sum += std::exp(z[j] - top) / total * value;
            found.largest = std::max(found.largest, extent * std::abs(value));
          }
          found.out[row * c.value_dim + d] = sum;
        }
        found.lse[(b * c.heads + h) * c.queries + i] =
            total == 0 ? -kInfinity : top + std::log(total);
      }
    }
  }
  return found;
}

// New tokens were written as they came, or as near as the cache can hold them.
inline void check_new_tokens(const CacheRun& run, const CacheTensor& rows, const CacheTensor& cache,
                             const CacheTensor& scale, DType dtype, bool rotated) {
  const CacheCase& c = run.c;
  const CacheNumbers stored = run.stored(cache, scale);
  const Values given = rows.values();
  for (std::int64_t b = 0; b < c.batch(); ++b) {
    for (std::int64_t t = 0; t < c.added; ++t) {
      for (std::int64_t h = 0; h < c.kv_heads; ++h) {
        const std::int64_t first = ((b * c.added + t) * c.kv_heads + h) * stored.dim;
        Values row(given.begin() + first, given.begin() + first + stored.dim);
        if (rotated) rotate(c, run.cos.values(), run.sin.values(), c.lengths[b] + t, row.data());
        const auto at = stored.values.begin() + stored.row(b, c.lengths[b] + t, h);
        const Values got(at, at + stored.dim);
        double largest = 0;
        for (double x : row) largest = std::max(largest, std::abs(x));
        if (c.int8) {
          for (std::int64_t d = 0; d < stored.dim; ++d) {
            EXPECT_NEAR(got[d], row[d], 0.501 * largest / 127);
          }
        } else {
          EXPECT_TRUE(close(dtype, got, row, largest));
        }
      }
    }
  }
}

}  // namespace transformer_kernels::testing
