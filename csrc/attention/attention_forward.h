// SPDX-License-Identifier: MIT
// The forward pass of some queries of one head. For sources that are compiled once per instruction
// set.
#pragma once

#include "attention/pack_rows.h"
#include "attention/score_row.h"

namespace transformer_kernels::cpu::TFK_ISA {

// The keys of a tile: `width` columns of a packed copy, some of which may lie past the last key.
struct KeyTile {
  std::int64_t key;
  std::int64_t width;

  TFK_INLINE static KeyTile at(std::int64_t key, std::int64_t end, std::int64_t panel) {
    const std::int64_t left = rounded_up(end - key, panel);
    return {key, left < kKeyBlock ? left : kKeyBlock};
  }
};

// `rows` are `dim` numbers each; scores = rows k^T, or rows v^T, of `width` packed keys. Long rows
// are summed up in parts: the rounding error of one chain would grow with its length.
template <class F>
void multiply_by_keys(const F* rows, std::int64_t count, const F* panels, std::int64_t dim,
                      std::int64_t width, F* scores) {
  constexpr std::int64_t kPart = 128;
  constexpr std::int64_t kPanel = kTileCols<F>;
  for (std::int64_t first = 0; first < dim; first += kPart) {
    const auto add_part = first == 0 ? multiply<false, F> : multiply<true, F>;
    add_part({rows + first, padded_dim(dim), 1}, {panels + first * kPanel, kPanel, kPanel * dim},
             {scores, kKeyBlock}, count, width, std::min(kPart, dim - first));
  }
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
        out(q + kQueryBlock * padded_dim(p.dim)),
        scores(out + kQueryBlock * padded_dim(p.value_dim)),
        row(scores + kQueryBlock * kKeyBlock),
        top(row + kKeyBlock),
        sum(top + kQueryBlock) {}
};

template <class F>
std::size_t forward_scratch(const AttentionProblem& p) {
  const std::int64_t numbers =
      kQueryBlock * (padded_dim(p.dim) + padded_dim(p.value_dim) + kKeyBlock + 2) + kKeyBlock;
  return static_cast<std::size_t>(numbers) * sizeof(F);
}

// Scores of one query become exp(score - top), and what was summed up before is scaled to the new
// top.
template <class F>
void accumulate_row(const AttentionProblem& p, F factor, std::int64_t width, F* scores, F* out,
                    F& top, F& sum) {
  const F highest = largest_of_row(scores, width) * factor;
  if (highest > top) {
    const F shrink = natural_exp(top - highest);
    top = highest;
    sum *= shrink;
    scale_row(out, shrink, padded_dim(p.value_dim));
  }
  // A query that has seen nothing yet: any finite origin makes every exp 0.
  const F origin = top == kMinusInfinity<F> ? F{0} : top;
  sum += exponentiate_row(scores, factor, origin, width);
}

template <class F>
void finish_row(const AttentionForwardProblem& p, const ForwardItem& item, std::int64_t query,
                F* out, F top, F sum) {
  const Sequence s = p.sequence(item.batch);
  if (sum != 0) scale_row(out, 1 / sum, p.value_dim);
  narrow_row(p.dtype, out, p.value_dim,
             p.out.address(p.dtype, item.batch, s.q_begin + query, item.head));
  if (p.lse == nullptr) return;
  F* const lse = static_cast<F*>(p.lse) + p.row(item.batch, item.head) + query;
  *lse = sum != 0 ? top + natural_log(sum) : kMinusInfinity<F>;
}

template <class F>
void forward_tile(const AttentionForwardProblem& p, const ForwardItem& item, const Sequence& s,
                  KeyTile tile, const ForwardScratch<F>& scratch) {
  const std::int64_t queries = item.queries.size();
  const F* const keys = static_cast<const F*>(item.packed.keys) + tile.key * p.dim;
  multiply_by_keys(scratch.q, queries, keys, p.dim, tile.width, scratch.scores);
  for (std::int64_t r = 0; r < queries; ++r) {
    F* const scores = scratch.scores + r * kKeyBlock;
    const std::int64_t query = item.queries.begin + r;
    const F factor = score_row<F>(p, s, {item.batch, item.head, query, tile.key, tile.width},
                                  scores, nullptr, scratch.row);
    accumulate_row(p, factor, tile.width, scores, scratch.out + r * padded_dim(p.value_dim),
                   scratch.top[r], scratch.sum[r]);
    if (p.drop_below != 0) {
      dropout_factors(p, p.row(item.batch, item.head) + query, tile.key, tile.width, scratch.row);
      multiply_rows(scores, scratch.row, tile.width);
    }
  }
  const std::int64_t width = padded_dim(p.value_dim);
  const F* const values = static_cast<const F*>(item.packed.values) + tile.key * width;
  multiply<true>(LeftMatrix<F>{scratch.scores, kKeyBlock, 1}, RightMatrix<F>{values, width},
                 OutMatrix<F>{scratch.out, width}, queries, width, tile.width);
}

template <class F>
void forward_item(const AttentionForwardProblem& p, const ForwardItem& item, void* memory) {
  const ForwardScratch<F> scratch(p, memory);
  const Sequence s = p.sequence(item.batch);
  const std::int64_t queries = item.queries.size();
  widen_rows(p.q, p.dtype, item.batch, s.q_begin + item.queries.begin, item.head, queries, p.dim,
             scratch.q, padded_dim(p.dim), s.q_begin + item.queries.end);
  fill_row(scratch.out, F{0}, queries * padded_dim(p.value_dim));
  const F sink = p.sinks.at<F>(item.batch, item.head, kMinusInfinity<F>);
  fill_row(scratch.top, sink, queries);
  fill_row(scratch.sum, sink == kMinusInfinity<F> ? F{0} : F{1}, queries);
  const Range keys = p.visible(s, item.queries);
  for (std::int64_t key = keys.begin / kKeyStep * kKeyStep; key < keys.end; key += kKeyBlock) {
    forward_tile(p, item, s, KeyTile::at(key, keys.end, kTileCols<F>), scratch);
  }
  for (std::int64_t r = 0; r < queries; ++r) {
    finish_row(p, item, item.queries.begin + r, scratch.out + r * padded_dim(p.value_dim),
               scratch.top[r], scratch.sum[r]);
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
