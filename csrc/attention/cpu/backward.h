// SPDX-License-Identifier: MIT
// The backward pass of some keys of one head. With p = exp(score - lse - lse_rest), f the factors
// of dropout and delta = sum(out * dout) - dlse:
//
//   dv += (f p)^T dout        dp = f (dout v^T)        dbias += dz = p (dp - delta)
//   ds  = dz * slope of the cap        dk += scale ds^T q        dq += scale ds k
//
// For sources that are compiled once per instruction set.
#pragma once

#include "attention/cpu/forward.h"

namespace transformer_kernels::cpu::TFK_ISA {

// Rows of kKeyBlock numbers, one for each query of a tile; `row` and `factors` are one alone.
template <class F>
struct ScoreScratch {
  F* p;      // the scores, then p, then f p
  F* ds;     // dp, then ds
  F* slope;  // of the cap
  F* row;
  F* factors;  // of dropout

  ScoreScratch(F* memory, std::int64_t queries)
      : p(memory),
        ds(p + queries * kKeyBlock),
        slope(ds + queries * kKeyBlock),
        row(slope + queries * kKeyBlock),
        factors(row + kKeyBlock) {}

  F* end() const { return factors + kKeyBlock; }
};

template <class F>
struct BackwardScratch {
  ScoreScratch<F> scores;
  F* q;
  F* dout;
  F* dk;
  F* dv;
  F* k_rows;  // copies of the keys of a tile
  F* k_columns;
  F* v_columns;

  BackwardScratch(const AttentionProblem& problem, void* memory)
      : scores(static_cast<F*>(memory), kQueryBlock),
        q(scores.end()),
        dout(q + kQueryBlock * spread_dim(problem.dim)),
        dk(dout + kQueryBlock * spread_dim(problem.value_dim)),
        dv(dk + kKeyBlock * padded_dim(problem.dim)),
        k_rows(dv + kKeyBlock * padded_dim(problem.value_dim)),
        k_columns(k_rows + kKeyBlock * spread_dim(problem.dim)),
        v_columns(k_columns + kKeyBlock * padded_dim(problem.dim)) {}
};

template <class F>
std::size_t backward_scratch(const AttentionProblem& p) {
  const std::int64_t dim = padded_dim(p.dim);
  const std::int64_t value_dim = padded_dim(p.value_dim);
  const std::int64_t q_step = spread_dim(p.dim);
  const std::int64_t numbers = kQueryBlock * (q_step + spread_dim(p.value_dim)) +
                               kKeyBlock * (q_step + 2 * dim + 2 * value_dim) +
                               3 * kQueryBlock * kKeyBlock + 2 * kKeyBlock;
  return static_cast<std::size_t>(numbers) * sizeof(F);
}

// Where the pass stands.
template <class F>
struct BackwardTile {
  const AttentionBackwardProblem& problem;
  const BackwardItem& item;
  Sequence sequence;
  std::int64_t head;
  Range queries;
  KeyTile tile;
  const ScoreScratch<F>& scores;

  std::int64_t first_row() const {
    return problem.row(item.batch, head) + queries.begin;  // of lse and delta
  }

  F* dq() const {
    const std::int64_t shared_head = head - item.kv_head * problem.group();
    const std::int64_t row = shared_head * problem.queries + queries.begin;
    return static_cast<F*>(item.dq) + row * padded_dim(problem.dim);
  }
};

// row = p * (row - delta)
template <class F>
TFK_FLATTEN void differentiate_softmax(F* row, const F* p, F delta, std::int64_t count) {
  const Vec<F> shift = Vec<F>::of(delta);
  map_row(row, row, p, count, [&](Vec<F> dp, Vec<F> e) { return e * (dp - shift); });
}

template <class F>
void add_bias_gradient(const BackwardTile<F>& t, std::int64_t query, const F* dz,
                       std::int64_t count) {
  const ScoreMap& dbias = t.problem.dbias;
  F* const target =
      static_cast<F*>(dbias.data) + dbias.offset(t.item.batch, t.head, query, t.tile.key);
  if (dbias.col_stride != 0) return add_rows(target, dz, count);
  *target += sum_of_row(dz, count);
}

// Computes ds of one query from its scores, in t.scores.p, and its dp, in t.scores.ds.
template <class F>
void differentiate_row(const BackwardTile<F>& t, std::int64_t r) {
  const AttentionBackwardProblem& p = t.problem;
  const ScoreScratch<F>& scratch = t.scores;
  const std::int64_t query = t.queries.begin + r;
  const std::int64_t width = t.tile.width;
  F* const scores = scratch.p + r * kKeyBlock;
  F* const ds = scratch.ds + r * kKeyBlock;
  F* const slope = p.softcap == 0 ? nullptr : scratch.slope + r * kKeyBlock;
  const double scale = score_row(p, t.sequence, {t.item.batch, t.head, query, t.tile.key, width},
                                 scores, slope, scratch.row);
  const F lse = static_cast<const F*>(p.lse)[t.first_row() + r];
  const F rest =
      p.lse_rest == nullptr ? F{0} : static_cast<const F*>(p.lse_rest)[t.first_row() + r];
  // A query that saw nothing has an lse of -inf, and scores of -inf: the powers are 0.
  const Powers<F> powers = powers_of_row(scores, scale, lse, rest, width);
  exponentiate_row(scores, powers.factor, powers.origin, width);
  if (p.drop_below != 0) {
    dropout_factors(p, t.first_row() + r, t.tile.key, width, scratch.factors);
    multiply_rows(ds, scratch.factors, width);
  }
  differentiate_softmax(ds, scores, static_cast<const F*>(t.item.delta)[t.first_row() + r], width);
  if (p.drop_below != 0) multiply_rows(scores, scratch.factors, width);
  const std::int64_t count = std::min(width, t.sequence.keys - t.tile.key);
  if (p.dbias.defined()) add_bias_gradient(t, query, ds, count);
  if (slope != nullptr) multiply_rows(ds, slope, count);
}

template <class F>
void backward_tile(const BackwardTile<F>& t, const BackwardScratch<F>& scratch) {
  const AttentionBackwardProblem& p = t.problem;
  const std::int64_t queries = t.queries.size();
  const std::int64_t keys = t.tile.width;
  const std::int64_t dim = padded_dim(p.dim);
  const std::int64_t value_dim = padded_dim(p.value_dim);
  const std::int64_t first = t.sequence.q_begin + t.queries.begin;
  const std::int64_t end = first + queries;
  const std::int64_t q_step = spread_dim(p.dim);
  const std::int64_t dout_step = spread_dim(p.value_dim);
  widen_rows(p.q, p.dtype, t.item.batch, first, t.head, queries, p.dim, scratch.q, q_step, end);
  widen_rows(p.dout, p.dtype, t.item.batch, first, t.head, queries, p.value_dim, scratch.dout,
             dout_step, end);
  multiply_by_keys(scratch.q, queries, scratch.k_columns, p.dim, keys, {t.scores.p, kKeyBlock});
  multiply_by_keys(scratch.dout, queries, scratch.v_columns, p.value_dim, keys,
                   {t.scores.ds, kKeyBlock});
  for (std::int64_t r = 0; r < queries; ++r) {
    const std::int64_t later = t.queries.end + r;
    request_query(p, p.q, t.item.batch, t.head, later, p.dim);
    request_query(p, p.dout, t.item.batch, t.head, later, p.value_dim);
    differentiate_row(t, r);
  }
  multiply<true>(LeftMatrix<F>{t.scores.p, 1, kKeyBlock}, RightMatrix<F>{scratch.dout, dout_step},
                 OutMatrix<F>{scratch.dv, value_dim}, keys, value_dim, queries);
  multiply<true>(LeftMatrix<F>{t.scores.ds, 1, kKeyBlock}, RightMatrix<F>{scratch.q, q_step},
                 OutMatrix<F>{scratch.dk, dim}, keys, dim, queries);
  multiply<true>(LeftMatrix<F>{t.scores.ds, kKeyBlock, 1}, RightMatrix<F>{scratch.k_rows, q_step},
                 OutMatrix<F>{t.dq(), dim}, queries, dim, keys);
}

// Calls body(head, queries) for the blocks of queries that may see some key of the tile.
template <class Body>
void for_each_seeing(const AttentionBackwardProblem& p, const BackwardItem& item, KeyTile tile,
                     std::int64_t block, Body&& body) {
  const Sequence s = p.sequence(item.batch);
  for (std::int64_t head = item.kv_head * p.group(); head < (item.kv_head + 1) * p.group();
       ++head) {
    for (std::int64_t query = 0; query < s.queries; query += block) {
      const Range queries{query, std::min(query + block, s.queries)};
      const Range seen = p.visible(s, queries);
      if (seen.end <= tile.key || seen.begin >= tile.key + tile.width) continue;
      body(head, queries);
    }
  }
}

// Rows of the gradients of k and v, `count` keys from `key` on; those of k are not scaled yet.
template <class F>
void write_key_gradients(const AttentionBackwardProblem& p, const BackwardItem& item,
                         std::int64_t key, std::int64_t count, const F* dk, const F* dv) {
  const Sequence s = p.sequence(item.batch);
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t row = s.k_begin + key + r;
    narrow_row(p.dtype, dk + r * padded_dim(p.dim), static_cast<F>(p.scale), p.dim,
               p.dk.address(p.dtype, item.batch, row, item.kv_head));
    narrow_row(p.dtype, dv + r * padded_dim(p.value_dim), F{1}, p.value_dim,
               p.dv.address(p.dtype, item.batch, row, item.kv_head));
  }
}

// The gradients of k and v of one key block, from all heads and queries that see it.
template <class F>
void backward_keys(const AttentionBackwardProblem& p, const BackwardItem& item,
                   const BackwardScratch<F>& scratch, std::int64_t key) {
  const Sequence s = p.sequence(item.batch);
  const KeyTile tile = KeyTile::at(key, s.keys, kKeyBlock, kTileCols<F>);
  const std::int64_t count = std::min(tile.width, s.keys - key);
  pack_keys(p, item.batch, item.kv_head, {key, key + count}, pack<F>,
            {scratch.k_columns, scratch.k_rows}, {scratch.v_columns, nullptr});
  fill_row(scratch.dk, F{0}, tile.width * padded_dim(p.dim));
  fill_row(scratch.dv, F{0}, tile.width * padded_dim(p.value_dim));
  for_each_seeing(p, item, tile, kQueryBlock, [&](std::int64_t head, Range queries) {
    backward_tile<F>({p, item, s, head, queries, tile, scratch.scores}, scratch);
  });
  write_key_gradients(p, item, key, count, scratch.dk, scratch.dv);
}

// Calls body(first key) for the item's key blocks, when its rows of dq are 0.
template <class F, class Body>
void for_each_key_block(const AttentionBackwardProblem& p, const BackwardItem& item, Body&& body) {
  const Sequence s = p.sequence(item.batch);
  const std::int64_t dim = padded_dim(p.dim);
  for (std::int64_t h = 0; h < p.group(); ++h) {
    fill_row(static_cast<F*>(item.dq) + h * p.queries * dim, F{0}, s.queries * dim);
  }
  for (std::int64_t block = item.first_key_block; block * kKeyBlock < s.keys;
       block += item.key_block_step) {
    body(block * kKeyBlock);
  }
}

template <class F>
void backward_item(const AttentionBackwardProblem& p, const BackwardItem& item, void* memory) {
  const BackwardScratch<F> scratch(p, memory);
  for_each_key_block<F>(p, item, [&](std::int64_t key) { backward_keys(p, item, scratch, key); });
}

// ---------------------------------------------------------------------------- before and after

template <class F>
void delta_of_rows(const AttentionBackwardProblem& p, const QueryItem& item, void* target,
                   void* memory) {
  const Sequence s = p.sequence(item.batch);
  const std::int64_t first = p.row(item.batch, item.head);
  F* const out = static_cast<F*>(memory);
  F* const dout = out + padded_dim(p.value_dim);
  for (std::int64_t query = item.queries.begin; query < item.queries.end; ++query) {
    const std::int64_t row = s.q_begin + query;
    request_query(p, p.out, item.batch, item.head, query + kRowsAhead, p.value_dim);
    request_query(p, p.dout, item.batch, item.head, query + kRowsAhead, p.value_dim);
    widen_row(p.dtype, p.out.address(p.dtype, item.batch, row, item.head), p.value_dim, out);
    widen_row(p.dtype, p.dout.address(p.dtype, item.batch, row, item.head), p.value_dim, dout);
    const F dlse = p.dlse == nullptr ? F{0} : static_cast<const F*>(p.dlse)[first + query];
    static_cast<F*>(target)[first + query] = dot_of_rows(out, dout, p.value_dim) - dlse;
  }
}

template <class F>
void add_splits(const AttentionBackwardProblem& p, const QueryItem& item, const void* splits,
                std::int64_t count, std::int64_t split_step, void* memory) {
  const Sequence s = p.sequence(item.batch);
  F* const sum = static_cast<F*>(memory);
  const F* row = static_cast<const F*>(splits);
  for (std::int64_t query = item.queries.begin; query < item.queries.end;
       ++query, row += padded_dim(p.dim)) {
    fill_row(sum, F{0}, p.dim);
    for (std::int64_t split = 0; split < count; ++split) {
      add_rows(sum, row + split * split_step, p.dim);
    }
    narrow_row(p.dtype, sum, static_cast<F>(p.scale), p.dim,
               p.dq.address(p.dtype, item.batch, s.q_begin + query, item.head));
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
