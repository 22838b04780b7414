// SPDX-License-Identifier: MIT
// How the gradient of a bias is cut. A dimension of scores is owned where the bias varies along it,
// and summed over where it is broadcast. A CTA owns a tile of queries and keys, of one element
// along a broadcast side, and adds up the same tile of all that is summed over: its terms. Where
// there are few tiles, several CTAs have a share of the terms each. Host and device alike.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "attention/attention_problem.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {

// Warps stand in a grid over the tile. Rows of operands come in pieces of kBiasChunkBytes.
inline constexpr int kBiasChunkBytes = 128;

struct BiasTile {
  int warps_down;
  int warps_across;
  int warp_rows;
  int warp_cols;
  int stages;  // chunks of both operands in shared memory
  int ctas;    // that registers leave room for on one SM

  constexpr int rows() const { return warps_down * warp_rows; }
  constexpr int cols() const { return warps_across * warp_cols; }
  constexpr int warps() const { return warps_down * warps_across; }
  constexpr int threads() const { return warps() * 32; }
  constexpr int stage_bytes() const { return (rows() + cols()) * kBiasChunkBytes; }
  // Stages, and the tile of the bias in float32.
  constexpr int shared_bytes() const {
    return stages * stage_bytes() + rows() * cols() * static_cast<int>(sizeof(float));
  }
};

// Largest first: the larger a tile, the less is read for each product. A warp's sums, scores and
// weights take 96 registers, which leaves room for 12 warps on an SM.
template <int kElementBytes>
inline constexpr std::array kBiasTiles = {
    BiasTile{4, 3, 32, 32, 3, 1},
    BiasTile{3, 2, 32, 32, 2, 2},
    BiasTile{2, 2, 32, 32, 2, 3},
};
// Operands in two parts take more.
template <>
inline constexpr std::array kBiasTiles<4> = {
    BiasTile{2, 2, 32, 32, 2, 2},
};

// The first tile that fits into shared memory and of which neither half would do, or the last one.
template <int kElementBytes>
constexpr std::size_t bias_tile_index(const AttentionProblem& p, int shared_bytes_per_cta) {
  constexpr auto& kTiles = kBiasTiles<kElementBytes>;
  constexpr int kStaticBytes = 5 * 1024;
  const auto fits = [&](const BiasTile& tile) {
    return tile.shared_bytes() + kStaticBytes <= shared_bytes_per_cta &&
           2 * p.queries > tile.rows() && 2 * p.keys > tile.cols();
  };
  std::size_t index = 0;
  while (index + 1 < kTiles.size() && !fits(kTiles[index])) ++index;
  return index;
}

template <class T, std::size_t kIndex>
struct BiasTilePlan {
  static constexpr BiasTile tile = kBiasTiles<sizeof(T)>[kIndex];
};

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
    const std::int64_t map = row / query_tiles;
    return {static_cast<int>(map / heads), static_cast<int>(map % heads),
            static_cast<int>(row % query_tiles), static_cast<int>(index % key_tiles)};
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

struct BiasGradientPlan {
  int rows;  // of a tile
  int cols;
  ScoreTileGrid owned;
  ScoreTileGrid summed;
  int shares;

  BiasGradientPlan() = default;
  BiasGradientPlan(const AttentionBackwardProblem& p, const BiasTile& tile)
      : rows(tile.rows()),
        cols(tile.cols()) {
    const auto tiles = [](std::int64_t size, int tile_size) {
      return static_cast<int>(divide_up(size, tile_size));
    };
    const ScoreTileGrid all = {static_cast<int>(p.batch), static_cast<int>(p.heads),
                               tiles(p.queries, rows), tiles(p.keys, cols)};
    const auto sum_over = [](std::int64_t stride, int& own, int& sum) {
      (stride == 0 ? own : sum) = 1;
    };
    owned = summed = all;
    sum_over(p.dbias.batch_stride, owned.batches, summed.batches);
    sum_over(p.dbias.head_stride, owned.heads, summed.heads);
    sum_over(p.dbias.row_stride, owned.query_tiles, summed.query_tiles);
    sum_over(p.dbias.col_stride, owned.key_tiles, summed.key_tiles);
    // Depends on sizes alone, and bounds the memory for sums by that of as many tiles.
    constexpr std::int64_t kCtasWanted = 256;
    const std::int64_t wanted = kCtasWanted / std::max<std::int64_t>(owned.count(), 1);
    shares = static_cast<int>(
        std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(summed.count(), 1)));
  }

  constexpr std::int64_t ctas() const { return owned.count() * shares; }
  constexpr int share(std::int64_t cta) const { return static_cast<int>(cta / owned.count()); }
  constexpr ScoreTile tile(std::int64_t cta) const { return owned[cta % owned.count()]; }

  // A CTA's part of the terms of which some query sees some key by its place.
  constexpr BiasTerms terms(const AttentionProblem& p, std::int64_t cta) const {
    const Sequence s = p.sequence(0);
    const ScoreTile own = tile(cta);
    const Range queries = span(own.query_tile, summed.query_tiles, rows, s.queries);
    const Range keys = span(own.key_tile, summed.key_tiles, cols, s.keys);
    const Range query_tiles = tiles_of(queries, p.seeing(s, keys), rows);
    const Range key_tiles = tiles_of(keys, p.visible(s, queries), cols);
    BiasTerms terms{own, summed, 0, 0};
    terms.first.query_tile = static_cast<int>(query_tiles.begin);
    terms.first.key_tile = static_cast<int>(key_tiles.begin);
    terms.grid.query_tiles = static_cast<int>(query_tiles.size());
    terms.grid.key_tiles = static_cast<int>(key_tiles.size());
    const std::int64_t all = terms.grid.count();
    terms.begin = all * share(cta) / shares;
    terms.count = static_cast<int>(all * (share(cta) + 1) / shares - terms.begin);
    return terms;
  }

 private:
  static constexpr Range span(int tile, int tiles, int size, std::int64_t end) {
    const std::int64_t first = static_cast<std::int64_t>(tile) * size;
    return {first, std::min(first + static_cast<std::int64_t>(tiles) * size, end)};
  }
  // Tiles that have a part of both, [0, 0) where there is none.
  static constexpr Range tiles_of(const Range& a, const Range& b, int size) {
    const Range both = {std::max(a.begin, b.begin), std::min(a.end, b.end)};
    if (both.empty()) return {0, 0};
    return {both.begin / size, (both.end + size - 1) / size};
  }
};

}  // namespace transformer_kernels::cuda
