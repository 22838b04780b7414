// SPDX-License-Identifier: MIT
// The tiles of the backward pass on Hopper against the definition of a window, key by key. Needs no
// GPU.
#include "attention/sm90/backward/geometry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace transformer_kernels::cuda {
namespace {

constexpr int divide_up(int a, int b) { return (a + b - 1) / b; }

BackwardGeometry geometry_of(int queries, int keys, bool bottom_right, int left, int right) {
  return {.queries = queries,
          .keys = keys,
          .heads = 6,
          .kv_heads = 3,
          .batch = 2,
          .shift = bottom_right ? keys - queries : 0,
          .window_left = left,
          .window_right = right,
          .query_blocks = divide_up(queries, kBlockQueries),
          .key_tiles = divide_up(keys, kTileKeys),
          .section = 4};
}

struct Sight {
  bool any = false;
  bool all = true;
};

// The sight of 64 keys and a block of queries. `any` counts existing elements, `all` whole blocks.
Sight sight_of(const BackwardGeometry& p, int first_key, int block) {
  Sight sight;
  for (int i = 0; i < kBlockQueries; ++i) {
    for (int j = first_key; j < first_key + 64; ++j) {
      const int query = block * kBlockQueries + i;
      const int place = j - query - p.shift;
      const bool sees = place >= -p.window_left && place <= p.window_right && j < p.keys;
      sight.all = sight.all && sees;
      sight.any = sight.any || (sees && query < p.queries);
    }
  }
  return sight;
}

void check_blocks(const BackwardGeometry& p) {
  std::vector<int> added(p.query_blocks, 0);
  for (int tile = 0; tile < p.key_tiles; ++tile) {
    const IntRange blocks = p.blocks_of(tile);
    for (int block = blocks.begin; block < blocks.end; ++block) {
      ASSERT_LT(block, p.query_blocks);
      EXPECT_EQ(p.turn(tile, block), added[block]++) << "tile " << tile << " block " << block;
    }
    for (int key = tile * kTileKeys; key < (tile + 1) * kTileKeys; key += 64) {
      const int begin = p.begin_block_of(key, blocks);
      const IntRange unmasked = p.unmasked_blocks(key, key + 63);
      EXPECT_LE(begin - blocks.begin, !blocks.empty() ? 1 : 0);
      for (int block = 0; block < p.query_blocks; ++block) {
        const Sight sight = sight_of(p, key, block);
        EXPECT_TRUE(!sight.any || (block >= begin && block < blocks.end)) << key << " " << block;
        if (block < unmasked.begin || block >= unmasked.end) continue;
        EXPECT_TRUE(sight.all) << key << " " << block;
      }
    }
  }
  for (int block = 0; block < p.query_blocks; ++block) {
    EXPECT_EQ(p.has_tile(block), added[block] > 0) << "block " << block;
  }
}

TEST(BackwardGeometry, blocks_cover_what_is_seen_and_tiles_take_turns) {
  for (const auto& [queries, keys] : {std::pair{1, 1},
                                      {64, 128},
                                      {65, 129},
                                      {300, 300},
                                      {513, 40},
                                      {40, 513},
                                      {1, 400},
                                      {400, 1},
                                      {520, 520}}) {
    for (const bool bottom_right : {true, false}) {
      for (const int left : {0, 5, 70, 200, kNoBound}) {
        for (const int right : {0, 3, 130, kNoBound}) {
          SCOPED_TRACE("T " + std::to_string(queries) + "x" + std::to_string(keys) + " window " +
                       std::to_string(left) + ", " + std::to_string(right));
          check_blocks(geometry_of(queries, keys, bottom_right, left, right));
        }
      }
    }
  }
}

TEST(BackwardGeometry, tiles_of_a_head_come_in_ascending_order) {
  for (int section = 1; section <= 6; ++section) {
    BackwardGeometry p = geometry_of(300, 500, true, kNoBound, kNoBound);
    p.section = section;
    std::vector<int> next(p.batch * p.kv_heads, 0);
    for (int i = 0; i < p.tiles(); ++i) {
      const KeyTile tile = p.tile(i);
      ASSERT_LT(tile.kv_head, p.kv_heads);
      ASSERT_LT(tile.batch, p.batch);
      EXPECT_EQ(tile.index, next[tile.batch * p.kv_heads + tile.kv_head]++);
    }
    for (int count : next) EXPECT_EQ(count, p.key_tiles);
  }
}

// Every row of every sequence lies in one block or tile, and those of a head come one after
// another.
TEST(BackwardGeometry, packed_sequences_have_blocks_and_tiles_of_their_own) {
  const std::vector<std::int32_t> q_offsets = {0, 64, 64, 193, 194, 500};
  const std::vector<std::int32_t> k_offsets = {0, 0, 129, 130, 430, 510};
  const int sequences = static_cast<int>(q_offsets.size()) - 1;
  BackwardGeometry p = geometry_of(q_offsets.back(), k_offsets.back(), true, kNoBound, 0);
  p.batch = 1;
  p.sequences = sequences;
  p.q_offsets = q_offsets.data();
  p.k_offsets = k_offsets.data();
  p.query_blocks = static_cast<int>(p.blocks_of_queries().count());
  p.key_tiles = static_cast<int>(p.tiles_of_keys().count());

  std::vector<int> tiles(sequences * p.kv_heads, 0);
  for (int i = 0; i < p.tiles(); ++i) {
    const KeyTile tile = p.tile_in_sequence(i);
    if (tile.first_key() >= p.sequence(tile.batch).keys) continue;
    EXPECT_EQ(tile.index, tiles[tile.batch * p.kv_heads + tile.kv_head]++);
  }
  for (int b = 0; b < sequences; ++b) {
    const IntSequence s = p.sequence(b);
    const BackwardGeometry one = p.of(s);
    EXPECT_EQ(one.queries, q_offsets[b + 1] - q_offsets[b]);
    EXPECT_EQ(one.keys, k_offsets[b + 1] - k_offsets[b]);
    EXPECT_EQ(one.shift, one.keys - one.queries);
    for (int head = 0; head < p.kv_heads; ++head) {
      EXPECT_EQ(tiles[b * p.kv_heads + head], divide_up(s.keys, kTileKeys));
    }
    for (int head = 0; head < p.heads; ++head) {
      for (int block = 0; block < one.query_blocks; ++block) {
        const int in_head = p.first_place(b, head) + block - p.block_place(0, head, 0);
        ASSERT_LT(in_head, p.query_blocks);
        const RowBlocks::Place place = p.blocks_of_queries()[in_head];
        EXPECT_EQ(place.batch, b);
        EXPECT_EQ(place.first, block * kBlockQueries);
      }
    }
  }
}

}  // namespace
}  // namespace transformer_kernels::cuda
