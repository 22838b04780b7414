// SPDX-License-Identifier: MIT
// The forward pass of some queries of one head of bfloat16, by products of pairs. The weights of
// values are rounded to bfloat16, as PyTorch rounds them; their sum is that of the numbers before.
// For sources that are compiled once per instruction set.
#pragma once

#include "attention/cpu/bfloat16/rows.h"
#include "attention/cpu/forward.h"

namespace transformer_kernels::cpu::TFK_ISA {

// A tile of scores, which become the weights where they stand. With AMX it stays in the first cache
// beside the queries. Its rows begin in different sets of the cache.
inline constexpr std::int64_t kPairQueries = TFK_ISA_LEVEL >= 4 ? 32 : 48;
inline constexpr std::int64_t kPairKeys = 256;
inline constexpr std::int64_t kScoreStep = kPairKeys + kPairSide;

struct PairForwardScratch {
  float* out;
  float* scores;
  float* row;  // of dropout factors, or for the features
  float* sum;  // a vector a query, of exp(score - top)
  float* top;  // of the scores of each query so far
  BFloat16* q;

  PairForwardScratch(const AttentionProblem& p, void* memory)
      : out(static_cast<float*>(memory)),
        scores(out + kPairQueries * padded_dim(p.value_dim)),
        row(scores + kPairQueries * kScoreStep),
        sum(row + kPairKeys),
        top(sum + kPairQueries * kPairSide),
        q(reinterpret_cast<BFloat16*>(top + kPairQueries)) {}
};

inline std::size_t pair_forward_scratch(const AttentionProblem& p) {
  const std::int64_t numbers =
      kPairQueries * (padded_dim(p.value_dim) + kScoreStep + kPairSide + 1) + kPairKeys;
  const std::int64_t elements = kPairQueries * paired_dim(p.dim);
  return static_cast<std::size_t>(numbers) * sizeof(float) +
         static_cast<std::size_t>(elements) * sizeof(BFloat16);
}

// row = exp2(row * factor - origin), rounded to the first half of the row's memory; what that
// comes to is added to `sums`. Factors of dropout may be null.
template <bool kDropout>
TFK_FLATTEN void round_weights(float* row, const float* dropout, float factor, float origin,
                               std::int64_t count, float* sums) {
  constexpr int kLanes = VecF::kLanes;
  const VecF scale = VecF::of(factor);
  const VecF shift = VecF::of(0.5f - origin);
  BFloat16Pair* const weights = reinterpret_cast<BFloat16Pair*>(row);
  VecF sum[2] = {load(sums, All{}), VecF::of(0)};
#pragma GCC unroll 2
  for (std::int64_t i = 0; i < count; i += 2 * kLanes) {
    VecF e[2];
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
      e[n] = short_exp2(fma(load(row + i + n * kLanes, All{}), scale, shift));
      sum[n] = sum[n] + e[n];
      if constexpr (kDropout) e[n] = e[n] * load(dropout + i + n * kLanes, All{});
    }
    store(weights + i / 2, rounded(e[0], e[1]), All{});
  }
  store(sums, sum[0] + sum[1], All{});
}

// accumulate_row() with weights that are rounded.
inline void weigh_row(const AttentionProblem& p, double scale, std::int64_t width, float* scores,
                      const float* dropout, float* out, float& top, float* sums) {
  const float highest = largest_of_row(scores, width) * static_cast<float>(scale);
  if (highest > top) {
    const float shrink = shrink_of(top, highest);
    top = highest;
    scale_row(sums, shrink, VecF::kLanes);
    scale_row(out, shrink, padded_dim(p.value_dim));
  }
  const Powers<float> powers = powers_of_row(scores, scale, top, 0.0f, width);
  const auto round = dropout == nullptr ? round_weights<false> : round_weights<true>;
  round(scores, dropout, powers.factor, powers.origin, width, sums);
}

inline void pair_forward_tile(const AttentionForwardProblem& p, const ForwardItem& item,
                              const Sequence& s, KeyTile tile, const PairForwardScratch& scratch) {
  const std::int64_t queries = item.queries.size();
  const std::int64_t rows = rounded_up(queries, kPairSide);
  const std::int64_t depth = paired_dim(p.dim) / 2;
  const BFloat16Pair* const columns = as_pairs(item.packed.keys) + tile.key * depth;
  multiply_pairs<false>({as_pairs(scratch.q), depth}, {columns, kKeyStep, kKeyStep * depth},
                        {scratch.scores, kScoreStep}, rows, tile.width, depth);
  for (std::int64_t r = 0; r < queries; ++r) {
    float* const scores = scratch.scores + r * kScoreStep;
    const std::int64_t query = item.queries.begin + r;
    const double scale = score_row<float>(
        p, s, {item.batch, item.head, query, tile.key, tile.width}, scores, nullptr, scratch.row);
    const float* dropout = nullptr;
    if (p.drop_below != 0) {
      dropout_factors(p, p.row(item.batch, item.head) + query, tile.key, tile.width, scratch.row);
      dropout = scratch.row;
    }
    weigh_row(p, scale, tile.width, scores, dropout, scratch.out + r * padded_dim(p.value_dim),
              scratch.top[r], scratch.sum + r * kPairSide);
  }
  const std::int64_t width = padded_dim(p.value_dim);
  const std::int64_t step = spread_dim(p.value_dim);
  const BFloat16Pair* const values = as_pairs(item.packed.values) + tile.key / 2 * step;
  multiply_pairs<true>({as_pairs(scratch.scores), kScoreStep}, {values, step}, {scratch.out, width},
                       rows, width, tile.width / 2);
}

inline void pair_forward_item(const AttentionForwardProblem& p, const ForwardItem& item,
                              void* memory) {
  const PairScope products;
  const PairForwardScratch scratch(p, memory);
  const Sequence s = p.sequence(item.batch);
  const std::int64_t queries = item.queries.size();
  copy_rows(p.q, item.batch, s.q_begin + item.queries.begin, item.head, queries, p.dim, scratch.q,
            kPairQueries, paired_dim(p.dim), s.q_begin + item.queries.end);
  fill_row(scratch.out, 0.0f, kPairQueries * padded_dim(p.value_dim));
  fill_row(scratch.sum, 0.0f, queries * kPairSide);
  const float sink = p.sinks.at<float>(item.batch, item.head, kMinusInfinity<float>);
  fill_row(scratch.top, sink, queries);
  for (std::int64_t r = 0; sink != kMinusInfinity<float> && r < queries; ++r) {
    scratch.sum[r * kPairSide] = 1;
  }
  const Range keys = p.visible(s, item.queries);
  for (std::int64_t key = keys.begin / kKeyStep * kKeyStep; key < keys.end; key += kPairKeys) {
    const std::int64_t width = std::min(rounded_up(keys.end - key, kKeyStep), kPairKeys);
    pair_forward_tile(p, item, s, {key, width}, scratch);
  }
  for (std::int64_t r = 0; r < queries; ++r) {
    finish_row(p, item, item.queries.begin + r, scratch.out + r * padded_dim(p.value_dim),
               scratch.top[r], sum_of_row(scratch.sum + r * kPairSide, VecF::kLanes));
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
