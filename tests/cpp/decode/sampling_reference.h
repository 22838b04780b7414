// SPDX-License-Identifier: MIT
// The choice of tokens as plainly as the public headers have it: one number after the other, with
// sorts. Weights have the kernels' single operations, so that tokens are equal, not close.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "philox_reference.h"
#include "transformer_kernels/decode/sample_logits.h"

namespace transformer_kernels::testing {

using Weights = std::vector<std::int64_t>;
inline constexpr float kUnit = 0x1p40f;

// A product and a sum that no compiler makes one operation of.
[[gnu::noinline]] inline float product(float a, float b) { return a * b; }
[[gnu::noinline]] inline double product(double a, double b) { return a * b; }

inline float reference_exponent(float z, float top, float temperature) {
  const double t = std::clamp(temperature, 0x1p-126f, 0x1p126f);
  const float x = z == top ? 0 : product(z - top, static_cast<float>(1.4426950408889634 / t));
  return x > -100 ? x : -100;
}

inline float reference_weight(float x) {
  const float n = std::nearbyint(x);
  const float r = x - n;
  float y = 0x1.5bba14p-10f;
  for (const float c : {0x1.3cea88p-7f, 0x1.c6b752p-5f, 0x1.ebf9bcp-3f, 0x1.62e42ap-1f, 0x1p0f}) {
    y = product(y, r) + c;
  }
  return std::ldexp(y, static_cast<int>(n) + 40);
}

inline double reference_uniform(std::int64_t seed, std::int64_t position, std::uint32_t stream) {
  const auto key = static_cast<std::uint64_t>(seed);
  const auto at = static_cast<std::uint64_t>(position);
  const auto words = reference_philox(
      {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32), stream, 0},
      {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
  const std::uint64_t bits = std::uint64_t{words[1]} << 32 | words[0];
  return std::ldexp(static_cast<double>(bits >> 11), -53);
}

inline std::int64_t total(const Weights& w) {
  return std::accumulate(w.begin(), w.end(), std::int64_t{0});
}

inline std::int64_t reference_draw(const Weights& w, double u) {
  const std::int64_t sum = total(w);
  if (sum == 0) return -1;
  const auto part =
      std::min(static_cast<std::int64_t>(product(u, static_cast<double>(sum))), sum - 1);
  std::int64_t running = 0;
  std::int64_t token = 0;
  while ((running += w[token]) <= part) ++token;
  return token;
}

// Takes out all behind those, in the order of larger keys, that have `share` of the weight.
inline void keep_share(Weights& w, const std::vector<float>& keys, float share) {
  const double wanted = product(static_cast<double>(share), static_cast<double>(total(w)));
  const auto mass = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(wanted)));
  std::vector<std::size_t> order(w.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](auto a, auto b) { return keys[a] > keys[b]; });
  std::int64_t before = 0;
  float last = keys[order[0]];
  for (const std::size_t i : order) {
    if (before < mass) last = keys[i];
    before += w[i];
  }
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = keys[i] >= last ? w[i] : 0;
}

// The weights that a token is drawn with, of logits without NaN.
inline Weights reference_weights(const std::vector<float>& z, const SamplingParameters& by) {
  const float top = *std::ranges::max_element(z);
  std::vector<float> x(z.size());
  std::vector<float> fine(z.size());
  Weights w(z.size());
  for (std::size_t i = 0; i < z.size(); ++i) {
    x[i] = reference_exponent(z[i], top, by.temperature);
    fine[i] = reference_weight(x[i]);
    w[i] = std::llrint(static_cast<double>(fine[i]));
  }
  if (by.top_k >= 1 && by.top_k < static_cast<float>(z.size())) {
    std::vector<float> sorted = z;
    std::ranges::sort(sorted, std::greater{});
    const float last = sorted[static_cast<std::size_t>(by.top_k) - 1];
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = z[i] >= last ? w[i] : 0;
  }
  if (by.top_p < 1) keep_share(w, z, by.top_p);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = fine[i] >= by.min_p * kUnit ? w[i] : 0;
  if (by.typical_p < 1) {
    std::int64_t moment = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (w[i] == 0) continue;
      const float part = product(product(fine[i], 1 / kUnit), x[i]);
      moment += std::llrint(static_cast<double>(product(part, 0x1p32f)));
    }
    const auto mean =
        static_cast<float>(static_cast<double>(moment) * 256 / static_cast<double>(total(w)));
    std::vector<float> nearness(z.size());
    for (std::size_t i = 0; i < w.size(); ++i) nearness[i] = -std::abs(x[i] - mean);
    keep_share(w, nearness, by.typical_p);
  }
  return w;
}

}  // namespace transformer_kernels::testing
