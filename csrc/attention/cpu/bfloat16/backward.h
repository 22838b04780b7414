// SPDX-License-Identifier: MIT
// The backward pass of some keys of one head of bfloat16, by products of pairs: the formulas of
// cpu/backward.h with p and ds rounded to bfloat16, as PyTorch rounds them. dk and dv are computed
// transposed, from transposed q and dout: pairs of queries are then neighbours in p and ds, whose
// rows are computed two at a time. For sources that are compiled once per instruction set.
#pragma once

#include "attention/cpu/backward.h"
#include "attention/cpu/bfloat16/forward.h"

namespace transformer_kernels::cpu::TFK_ISA {

// Terms of the sums over queries: whole blocks of transposed pairs.
inline constexpr std::int64_t kPairBackwardQueries = TFK_ISA_LEVEL >= 4 ? 64 : 96;

struct PairBackwardScratch {
  ScoreScratch<float> scores;
  float* dq;          // of the tile, in rows of padded_dim()
  float* dk_columns;  // in rows of kKeyBlock
  float* dv_columns;
  float* dk;  // in rows of padded_dim()
  float* dv;
  BFloat16* q;
  BFloat16* dout;
  BFloat16Pair* q_columns;
  BFloat16Pair* dout_columns;
  BFloat16Pair* k_rows;  // copies of the keys of a tile
  BFloat16Pair* k_columns;
  BFloat16Pair* v_columns;

  PairBackwardScratch(const AttentionProblem& p, void* memory)
      : scores(static_cast<float*>(memory), kPairBackwardQueries),
        dq(scores.end()),
        dk_columns(dq + kPairBackwardQueries * padded_dim(p.dim)),
        dv_columns(dk_columns + kKeyBlock * padded_dim(p.dim)),
        dk(dv_columns + kKeyBlock * padded_dim(p.value_dim)),
        dv(dk + kKeyBlock * padded_dim(p.dim)),
        q(reinterpret_cast<BFloat16*>(dv + kKeyBlock * padded_dim(p.value_dim))),
        dout(q + kPairBackwardQueries * paired_dim(p.dim)),
        q_columns(
            reinterpret_cast<BFloat16Pair*>(dout + kPairBackwardQueries * paired_dim(p.value_dim))),
        dout_columns(q_columns + kPairBackwardQueries / 2 * padded_dim(p.dim)),
        k_rows(dout_columns + kPairBackwardQueries / 2 * padded_dim(p.value_dim)),
        k_columns(k_rows + kKeyBlock / 2 * spread_dim(p.dim)),
        v_columns(k_columns + kKeyBlock / 2 * paired_dim(p.dim)) {}
};

inline std::size_t pair_backward_scratch(const AttentionProblem& p) {
  constexpr std::int64_t kQueries = kPairBackwardQueries;
  const std::int64_t dims = padded_dim(p.dim) + padded_dim(p.value_dim);
  const std::int64_t numbers = 3 * kQueries * kKeyBlock + 2 * kKeyBlock +
                               kQueries * padded_dim(p.dim) + 2 * kKeyBlock * dims;
  const std::int64_t paired_dims = paired_dim(p.dim) + paired_dim(p.value_dim);
  const std::int64_t elements =
      kQueries * (paired_dims + dims) + kKeyBlock * (paired_dims + spread_dim(p.dim));
  return static_cast<std::size_t>(numbers) * sizeof(float) +
         static_cast<std::size_t>(elements) * sizeof(BFloat16);
}

// Rows 2 r and 2 r + 1 of p and ds, in float, become pairs of queries: those of p in the even row
// of p, those of ds in the odd one. The rows of ds become pairs of keys, in the first half of
// theirs.
TFK_FLATTEN inline void round_rows(float* p, float* ds, std::int64_t count) {
  constexpr int kLanes = VecF::kLanes;
  auto* const p_pairs = reinterpret_cast<BFloat16Pair*>(p);
  auto* const ds_pairs = reinterpret_cast<BFloat16Pair*>(p + kKeyBlock);
  auto* const even_row = reinterpret_cast<BFloat16*>(ds);
  auto* const odd_row = reinterpret_cast<BFloat16*>(ds + kKeyBlock);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const VecP of_p = paired(load(p + i, All{}), load(p + kKeyBlock + i, All{}));
    const __m256i even = to_bfloat16(load(ds + i, All{}));
    const __m256i odd = to_bfloat16(load(ds + kKeyBlock + i, All{}));
    store(p_pairs + i, of_p, All{});
    store(ds_pairs + i, paired(even, odd), All{});
    store_words(even_row + i, even, All{});
    store_words(odd_row + i, odd, All{});
  }
}

inline void load_tile_rows(const BackwardTile<float>& t, const PairBackwardScratch& scratch) {
  const AttentionBackwardProblem& p = t.problem;
  const std::int64_t queries = t.queries.size();
  const std::int64_t first = t.sequence.q_begin + t.queries.begin;
  constexpr std::int64_t kRows = kPairBackwardQueries;
  const std::int64_t dim = paired_dim(p.dim);
  const std::int64_t value_dim = paired_dim(p.value_dim);
  const std::int64_t end = first + queries;
  copy_rows(p.q, t.item.batch, first, t.head, queries, p.dim, scratch.q, kRows, dim, end);
  copy_rows(p.dout, t.item.batch, first, t.head, queries, p.value_dim, scratch.dout, kRows,
            value_dim, end);
  transpose_elements(scratch.q, dim, kRows, padded_dim(p.dim), scratch.q_columns, kRows / 2);
  transpose_elements(scratch.dout, value_dim, kRows, padded_dim(p.value_dim), scratch.dout_columns,
                     kRows / 2);
}

// The products of rows of q with the keys, or of dout with the values.
inline void multiply_by_key_pairs(const BFloat16* rows, std::int64_t count,
                                  const BFloat16Pair* columns, std::int64_t dim, std::int64_t width,
                                  float* scores) {
  const std::int64_t depth = paired_dim(dim) / 2;
  multiply_pairs<false>({as_pairs(rows), depth}, {columns, kKeyStep, kKeyStep * depth},
                        {scores, kKeyBlock}, count, width, depth);
}

inline void pair_backward_tile(const BackwardTile<float>& t, const PairBackwardScratch& scratch) {
  const AttentionBackwardProblem& p = t.problem;
  const std::int64_t queries = t.queries.size();
  const std::int64_t rows = rounded_up(queries, 2 * kPairSide);
  const std::int64_t width = t.tile.width;
  const std::int64_t dim = padded_dim(p.dim);
  float* const scores = t.scores.p;
  float* const ds = t.scores.ds;
  load_tile_rows(t, scratch);
  multiply_by_key_pairs(scratch.q, rows, scratch.k_columns, p.dim, width, scores);
  multiply_by_key_pairs(scratch.dout, rows, scratch.v_columns, p.value_dim, width, ds);
  for (std::int64_t r = 0; r < queries; ++r) differentiate_row(t, r);
  fill_row(scores + queries * kKeyBlock, 0.0f, (rows - queries) * kKeyBlock);
  fill_row(ds + queries * kKeyBlock, 0.0f, (rows - queries) * kKeyBlock);
  for (std::int64_t r = 0; r < rows; r += 2) {
    round_rows(scores + r * kKeyBlock, ds + r * kKeyBlock, width);
  }
  constexpr std::int64_t kColumns = kPairBackwardQueries / 2;
  multiply_pairs<true>({scratch.dout_columns, kColumns}, {as_pairs(scores), 2 * kKeyBlock},
                       {scratch.dv_columns, kKeyBlock}, padded_dim(p.value_dim), width, rows / 2);
  multiply_pairs<true>({scratch.q_columns, kColumns}, {as_pairs(scores + kKeyBlock), 2 * kKeyBlock},
                       {scratch.dk_columns, kKeyBlock}, dim, width, rows / 2);
  multiply_pairs<false>({as_pairs(ds), kKeyBlock}, {scratch.k_rows, spread_dim(p.dim)},
                        {scratch.dq, dim}, rows, dim, width / 2);
  add_rows(t.dq(), scratch.dq, queries * dim);
}

inline void pair_backward_keys(const AttentionBackwardProblem& p, const BackwardItem& item,
                               const PairBackwardScratch& scratch, std::int64_t key) {
  const Sequence s = p.sequence(item.batch);
  const KeyTile tile = KeyTile::at(key, s.keys, kKeyBlock, kKeyStep);
  const std::int64_t dim = padded_dim(p.dim);
  const std::int64_t value_dim = padded_dim(p.value_dim);
  const std::int64_t count = std::min(tile.width, s.keys - key);
  pack_keys(p, item.batch, item.kv_head, {key, key + count}, pack_pairs,
            {scratch.k_columns, scratch.k_rows}, {scratch.v_columns, nullptr});
  fill_row(scratch.dk_columns, 0.0f, dim * kKeyBlock);
  fill_row(scratch.dv_columns, 0.0f, value_dim * kKeyBlock);
  for_each_seeing(p, item, tile, kPairBackwardQueries, [&](std::int64_t head, Range queries) {
    pair_backward_tile({p, item, s, head, queries, tile, scratch.scores}, scratch);
  });
  transpose_floats(scratch.dk_columns, kKeyBlock, dim, tile.width, scratch.dk, dim);
  transpose_floats(scratch.dv_columns, kKeyBlock, value_dim, tile.width, scratch.dv, value_dim);
  write_key_gradients(p, item, key, count, scratch.dk, scratch.dv);
}

inline void pair_backward_item(const AttentionBackwardProblem& p, const BackwardItem& item,
                               void* memory) {
  const PairScope products;
  const PairBackwardScratch scratch(p, memory);
  for_each_key_block<float>(p, item,
                            [&](std::int64_t key) { pair_backward_keys(p, item, scratch, key); });
}

}  // namespace transformer_kernels::cpu::TFK_ISA
