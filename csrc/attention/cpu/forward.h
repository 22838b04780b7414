// SPDX-License-Identifier: MIT
// The forward pass of some queries of one head. For sources that are compiled once per instruction
// set.
#pragma once

#include "attention/cpu/pack.h"
#include "attention/cpu/scores.h"

namespace transformer_kernels::cpu::TFK_ISA {

// A tile of scores, which stays in the second cache with its rows of q and out.
inline constexpr std::int64_t kForwardQueries = 48;
inline constexpr std::int64_t kForwardKeys = 256;

// The keys of a tile: `width` columns of a packed copy, some of which may lie past the last key.
struct KeyTile {
  std::int64_t key;
  std::int64_t width;

  // A tile of at most `most` of the keys up to `end`, in whole panels.
  TFK_INLINE static KeyTile at(std::int64_t key, std::int64_t end, std::int64_t most,
                               std::int64_t panel) {
    return {key, std::min(rounded_up(end - key, panel), most)};
  }
};

// scores = rows k^T, or rows v^T, of `width` packed keys; `rows` are spread_dim() numbers apart.
template <class F>
void multiply_by_keys(const F* rows, std::int64_t count, const F* panels, std::int64_t dim,
                      std::int64_t width, OutMatrix<F> scores) {
  constexpr std::int64_t kPanel = kTileCols<F>;
  multiply_in_parts<false>(LeftMatrix<F>{rows, spread_dim(dim), 1},
                           RightMatrix<F>{panels, kPanel, kPanel * dim}, scores, count, width, dim);
}

template <class F>
struct ForwardScratch {
  F* q;
  F* out;
  F* scores;
  F* row;
  F* top;  // of the scores of each query so far
  F* sum;  // of exp(score - top)

  ForwardScratch(const AttentionProblem& p, void* memory)
      : q(static_cast<F*>(memory)),
        out(q + kForwardQueries * spread_dim(p.dim)),
        scores(out + kForwardQueries * padded_dim(p.value_dim)),
        row(scores + kForwardQueries * kForwardKeys),
        top(row + kForwardKeys),
        sum(top + kForwardQueries) {}
};

template <class F>
std::size_t forward_scratch(const AttentionProblem& p) {
  const std::int64_t numbers =
      kForwardQueries * (spread_dim(p.dim) + padded_dim(p.value_dim) + kForwardKeys + 2) +
      kForwardKeys;
  return static_cast<std::size_t>(numbers) * sizeof(F);
}

// exp(from - to), from where there may be nothing.
template <class F>
F shrink_of(F from, F to) {
  return power_of_two(to_base_two(from - to));
}

// Scores of one query become exp(score * scale - top), and what was summed up before is scaled to
// the new top; the first tile finds nothing in `out`.
template <class F>
void accumulate_row(double scale, std::int64_t width, F* scores, F* out, std::int64_t out_width,
                    F& top, F& sum) {
  const F highest = largest_of_row(scores, width) * static_cast<F>(scale);
  if (highest > top) {
    const F shrink = shrink_of(top, highest);
    top = highest;
    sum *= shrink;
    scale_row(out, shrink, out_width);
  }
  const Powers<F> powers = powers_of_row(scores, scale, top, F{0}, width);
  sum += exponentiate_row(scores, powers.factor, powers.origin, width);
}

template <class F>
void finish_row(const AttentionForwardProblem& p, const ForwardItem& item, std::int64_t query,
                const F* out, F top, F sum) {
  const Sequence s = p.sequence(item.batch);
  narrow_row(p.dtype, out, sum != 0 ? 1 / sum : F{1}, p.value_dim,
             p.out.address(p.dtype, item.batch, s.q_begin + query, item.head));
  if (p.lse == nullptr) return;
  const std::int64_t row = p.row(item.batch, item.head) + query;
  const LogSumExp<F> end =
      sum != 0 ? log_sum_exp(top, natural_log(sum)) : LogSumExp<F>{kMinusInfinity<F>, 0};
  static_cast<F*>(p.lse)[row] = end.lse;
  if (p.lse_rest != nullptr) static_cast<F*>(p.lse_rest)[row] = end.rest;
}

// Asks for a row that the next block of queries will read, one at a time: a whole block at once
// would wait for memory.
inline void request_query(const AttentionProblem& p, const HeadRows& rows, std::int64_t batch,
                          std::int64_t head, std::int64_t query, std::int64_t dim) {
  const Sequence s = p.sequence(batch);
  const std::int64_t row = s.q_begin + std::min(query, s.queries - 1);
  prefetch_row(rows.address(p.dtype, batch, row, head), dim * size_of(p.dtype));
}

template <class F>
void forward_tile(const AttentionForwardProblem& p, const ForwardItem& item, const Sequence& s,
                  KeyTile tile, bool first, const ForwardScratch<F>& scratch) {
  const std::int64_t queries = item.queries.size();
  const std::int64_t width = padded_dim(p.value_dim);
  const std::int64_t step = spread_dim(p.value_dim);
  const F* const keys = static_cast<const F*>(item.packed.keys) + tile.key * p.dim;
  multiply_by_keys(scratch.q, queries, keys, p.dim, tile.width, {scratch.scores, kForwardKeys});
  for (std::int64_t r = 0; r < queries; ++r) {
    F* const scores = scratch.scores + r * kForwardKeys;
    const std::int64_t query = item.queries.begin + r;
    if (first) request_query(p, p.q, item.batch, item.head, query + queries, p.dim);
    const double scale = score_row<F>(p, s, {item.batch, item.head, query, tile.key, tile.width},
                                      scores, nullptr, scratch.row);
    accumulate_row(scale, tile.width, scores, scratch.out + r * width, first ? 0 : width,
                   scratch.top[r], scratch.sum[r]);
    if (p.drop_below != 0) {
      dropout_factors(p, p.row(item.batch, item.head) + query, tile.key, tile.width, scratch.row);
      multiply_rows(scores, scratch.row, tile.width);
    }
  }
  const F* const values = static_cast<const F*>(item.packed.values) + tile.key * step;
  const auto add = first ? multiply_in_parts<false, F> : multiply_in_parts<true, F>;
  add({scratch.scores, kForwardKeys, 1}, {values, step}, {scratch.out, width}, queries, width,
      tile.width);
}

template <class F>
void forward_item(const AttentionForwardProblem& p, const ForwardItem& item, void* memory) {
  const ForwardScratch<F> scratch(p, memory);
  const Sequence s = p.sequence(item.batch);
  const std::int64_t queries = item.queries.size();
  widen_rows(p.q, p.dtype, item.batch, s.q_begin + item.queries.begin, item.head, queries, p.dim,
             scratch.q, spread_dim(p.dim), s.q_begin + item.queries.end);
  const F sink = p.sinks.at<F>(item.batch, item.head, kMinusInfinity<F>);
  fill_row(scratch.top, sink, queries);
  fill_row(scratch.sum, sink == kMinusInfinity<F> ? F{0} : F{1}, queries);
  const Range keys = p.visible(s, item.queries);
  const std::int64_t first = keys.begin / kKeyStep * kKeyStep;
  for (std::int64_t key = first; key < keys.end; key += kForwardKeys) {
    const KeyTile tile = KeyTile::at(key, keys.end, kForwardKeys, kTileCols<F>);
    forward_tile(p, item, s, tile, key == first, scratch);
  }
  if (first >= keys.end) fill_row(scratch.out, F{0}, queries * padded_dim(p.value_dim));
  for (std::int64_t r = 0; r < queries; ++r) {
    finish_row(p, item, item.queries.begin + r, scratch.out + r * padded_dim(p.value_dim),
               scratch.top[r], scratch.sum[r]);
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
