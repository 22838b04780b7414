// SPDX-License-Identifier: MIT
// The division of the gradient of a bias into work. A dimension of scores is owned where the bias
// varies along it, and summed over where it is broadcast. A CTA owns a tile of queries and keys, of
// one element along a broadcast side, and adds up that tile over all summed dimensions: its terms.
// Where there are few tiles, the terms are split among several CTAs. Host and device alike.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/problem.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {

// Rows of operands come in slabs of kBiasSlabBytes, kBiasStages of them in shared memory.
inline constexpr int kBiasSlabBytes = 128;
inline constexpr int kBiasStages = 2;

// Four warps own a quarter of a tile each: larger tiles read less for each product, but their sums,
// scores and weights leave too few registers for the warps that hide each other's waits.
inline constexpr int kBiasTile = 64;  // queries and keys
inline constexpr int kBiasWarpTile = 32;
inline constexpr int kBiasThreads = 128;

// Both operands of a stage.
inline constexpr int kBiasStageBytes = 2 * kBiasTile * kBiasSlabBytes;
// Stages, and the tile of the bias in float32.
inline constexpr int kBiasSharedBytes =
    kBiasStages * kBiasStageBytes + kBiasTile * kBiasTile * static_cast<int>(sizeof(float));

// A tile of the scores of one head.
struct ScoreTile {
  int batch;
  int head;
  int query_tile;
  int key_tile;

  constexpr ScoreTile operator+(const ScoreTile& t) const {
    return {batch + t.batch, head + t.head, query_tile + t.query_tile, key_tile + t.key_tile};
  }
};

// Numbers tiles, those of keys first.
struct ScoreTileGrid {
  int batches;
  int heads;
  int query_tiles;
  int key_tiles;

  constexpr std::int64_t count() const {
    return static_cast<std::int64_t>(batches) * heads * query_tiles * key_tiles;
  }
  constexpr ScoreTile operator[](std::int64_t index) const {
    const std::int64_t row = index / key_tiles;
    const int map = static_cast<int>(row) / query_tiles;  // there are less than 2^31 rows
    const int batch = map / heads;
    return {batch, map - batch * heads, static_cast<int>(row) - map * query_tiles,
            static_cast<int>(index - row * key_tiles)};
  }
  // The one behind it.
  constexpr ScoreTile after(ScoreTile at) const {
    if (++at.key_tile < key_tiles) return at;
    at.key_tile = 0;
    if (++at.query_tile < query_tiles) return at;
    at.query_tile = 0;
    if (++at.head < heads) return at;
    at.head = 0;
    ++at.batch;
    return at;
  }
};

// `count` terms from `begin` on of those that `grid` numbers; tiles count from `first` on.
struct BiasTerms {
  ScoreTile first;
  ScoreTileGrid grid;
  std::int64_t begin;
  int count;
};

// The size of a tile of dbias.
struct BiasExtent {
  int rows;
  int cols;
};

struct BiasGradientPlan {
  ScoreTileGrid owned;
  ScoreTileGrid summed;
  int splits;

  BiasGradientPlan() = default;
  explicit BiasGradientPlan(const AttentionBackwardProblem& p) {
    const auto tiles = [](std::int64_t size) {
      return static_cast<int>(divide_up(size, kBiasTile));
    };
    const ScoreTileGrid all = {static_cast<int>(p.batch), static_cast<int>(p.heads),
                               tiles(p.queries), tiles(p.keys)};
    const auto sum_over = [](std::int64_t stride, int& own, int& sum) {
      (stride == 0 ? own : sum) = 1;
    };
    owned = summed = all;
    sum_over(p.dbias.batch_stride, owned.batches, summed.batches);
    sum_over(p.dbias.head_stride, owned.heads, summed.heads);
    sum_over(p.dbias.row_stride, owned.query_tiles, summed.query_tiles);
    sum_over(p.dbias.col_stride, owned.key_tiles, summed.key_tiles);
    // Depends on sizes alone, and bounds the memory for sums by that of as many tiles.
    constexpr std::int64_t kCtasWanted = 384;
    const std::int64_t wanted = kCtasWanted / std::max<std::int64_t>(owned.count(), 1);
    splits = static_cast<int>(
        std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(summed.count(), 1)));
  }

  constexpr std::int64_t ctas() const { return owned.count() * splits; }
  constexpr int split(int cta) const { return cta / static_cast<int>(owned.count()); }
  constexpr ScoreTile tile(int cta) const { return owned[cta % static_cast<int>(owned.count())]; }

  // The part of dbias that a CTA writes: at most its tile, and one element along a broadcast side.
  constexpr BiasExtent extent(const AttentionBackwardProblem& p, const ScoreTile& own) const {
    const auto size = [](std::int64_t stride, int tile, std::int64_t end) {
      return stride == 0 ? 1 : static_cast<int>(span(tile, 1, end).size());
    };
    return {size(p.dbias.row_stride, own.query_tile, p.queries),
            size(p.dbias.col_stride, own.key_tile, p.keys)};
  }

  // A CTA's part of the terms of which some query sees some key by its place.
  constexpr BiasTerms terms(const AttentionProblem& p, int cta) const {
    const Sequence s = p.sequence(0);
    const ScoreTile own = tile(cta);
    const Range queries = span(own.query_tile, summed.query_tiles, s.queries);
    const Range keys = span(own.key_tile, summed.key_tiles, s.keys);
    const Range query_tiles = tiles_of(queries, p.seeing(s, keys));
    const Range key_tiles = tiles_of(keys, p.visible(s, queries));
    BiasTerms terms{own, summed, 0, 0};
    terms.first.query_tile = static_cast<int>(query_tiles.begin);
    terms.first.key_tile = static_cast<int>(key_tiles.begin);
    terms.grid.query_tiles = static_cast<int>(query_tiles.size());
    terms.grid.key_tiles = static_cast<int>(key_tiles.size());
    const std::int64_t all = terms.grid.count();
    terms.begin = all * split(cta) / splits;
    terms.count = static_cast<int>(all * (split(cta) + 1) / splits - terms.begin);
    return terms;
  }

 private:
  static constexpr Range span(int tile, int tiles, std::int64_t end) {
    const std::int64_t first = static_cast<std::int64_t>(tile) * kBiasTile;
    return {first, std::min(first + static_cast<std::int64_t>(tiles) * kBiasTile, end)};
  }
  // Tiles that have a part of both, [0, 0) where there is none.
  static constexpr Range tiles_of(const Range& a, const Range& b) {
    const Range both = {std::max(a.begin, b.begin), std::min(a.end, b.end)};
    if (both.empty()) return {0, 0};
    return {both.begin / kBiasTile, (both.end + kBiasTile - 1) / kBiasTile};
  }
};

}  // namespace transformer_kernels::cuda
