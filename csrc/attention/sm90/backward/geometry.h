// SPDX-License-Identifier: MIT
// The division of the backward pass on Hopper: tiles of keys, each of which goes through blocks of
// queries, the last block first. Host and device alike.
#pragma once

#include <algorithm>

#include "attention/common/geometry.h"
#include "core/row_blocks.h"

namespace transformer_kernels::cuda {

inline constexpr int kBlockQueries = 64;
inline constexpr int kTileKeys = 128;
// The most rows of a sequence: sums of places, bounds and blocks fit 32 bits.
inline constexpr int kMostRows = kNoBound >> 1;

// Keys of one head of k and v.
struct KeyTile {
  int index;  // within its head
  int kv_head;
  int batch;

  constexpr int first_key() const { return index * kTileKeys; }
};

// With offsets, sequences lie one after another in one batch: rows are those of all together, and
// so are blocks and tiles, numbered as RowBlocks does. of() gives a sequence's own.
struct BackwardGeometry {
  int queries;
  int keys;
  int heads;
  int kv_heads;
  int batch;
  int shift;        // of the diagonal: query i stands on key i + shift
  int window_left;  // kNoBound where there is none
  int window_right;
  int query_blocks;  // of a head
  int key_tiles;     // of a head
  int section;       // heads of k whose tiles are mixed
  bool bottom_right = true;
  int sequences = 0;  // with offsets
  const std::int32_t* q_offsets = nullptr;
  const std::int32_t* k_offsets = nullptr;

  constexpr int group() const { return heads / kv_heads; }
  constexpr int tiles() const { return batch * kv_heads * key_tiles; }

  // Sections one after another; within one, the first tile of every head, then the second ones.
  // Under a causal mask that is longest first. Tiles of one head come in ascending order always,
  // which is what makes it safe for a tile to wait for those before it.
  constexpr KeyTile tile(int number) const {
    const int all_heads = batch * kv_heads;
    const int per_section = section * key_tiles;
    const int first_head = number / per_section * section;
    const int rest = number % per_section;
    const int heads_here = std::min(section, all_heads - first_head);
    const int head = first_head + rest % heads_here;
    return {rest / heads_here, head % kv_heads, head / kv_heads};
  }

  constexpr RowBlocks blocks_of_queries() const {
    return {q_offsets, sequences, queries, kBlockQueries};
  }
  constexpr RowBlocks tiles_of_keys() const { return {k_offsets, sequences, keys, kTileKeys}; }

  // A tile that counts from the begin of its sequence; it may lie past the end.
  constexpr KeyTile tile_in_sequence(int number) const {
    const KeyTile among_all = tile(number);
    if (k_offsets == nullptr) return among_all;
    const RowBlocks::Place place = tiles_of_keys()[among_all.index];
    return {place.first / kTileKeys, among_all.kv_head, place.batch};
  }

  constexpr IntSequence sequence(int of_batch) const {
    if (q_offsets == nullptr) return {queries, keys, 0, 0};
    const int q_begin = q_offsets[of_batch];
    const int k_begin = k_offsets[of_batch];
    return {q_offsets[of_batch + 1] - q_begin, k_offsets[of_batch + 1] - k_begin, q_begin, k_begin};
  }

  constexpr BackwardGeometry of(const IntSequence& s) const {
    BackwardGeometry one = *this;
    one.queries = s.queries;
    one.keys = s.keys;
    one.shift = shift_of(bottom_right, s.queries, s.keys);
    one.query_blocks = (s.queries + kBlockQueries - 1) / kBlockQueries;
    return one;
  }

  // The place of a sequence's first block.
  constexpr int first_place(int of_batch, int head) const {
    if (q_offsets == nullptr) return block_place(of_batch, head, 0);
    return block_place(0, head, q_offsets[of_batch] / kBlockQueries + of_batch);
  }

  // Blocks with a query that sees one of the tile's keys. Both bounds ascend with the tile. They
  // are first_row() and last_row() of the band, spelled out for the order of the sums.
  constexpr IntRange blocks_of(int tile) const {
    const int first_query = tile * kTileKeys - window_right - shift;
    const int end_query = (tile + 1) * kTileKeys + window_left - shift;
    return {std::max(first_query, 0) / kBlockQueries,
            std::min((std::max(end_query, 0) + kBlockQueries - 1) / kBlockQueries, query_blocks)};
  }

  // The first of a tile's blocks that sees one of the 64 keys from this one on.
  constexpr int begin_block_of(int key, IntRange blocks) const {
    const int begin = std::max(band().first_row(key), 0) / kBlockQueries;
    return std::max(blocks.begin, std::min(begin, blocks.end));
  }

  // Blocks of which each query sees every key from first_key to last_key.
  constexpr IntRange unmasked_blocks(int first_key, int last_key) const {
    const int first_query = band().first_row(last_key);
    const int end_query = band().last_row(first_key) + 1;
    if (last_key >= keys) return {query_blocks, 0};
    return {(std::max(first_query, 0) + kBlockQueries - 1) / kBlockQueries,
            std::max(end_query, 0) / kBlockQueries};
  }

  // The queries that a key is seen by, counted from this one on; both ends count.
  struct Seen {
    int first;
    int last;

    constexpr bool has(int query) const { return query >= first && query <= last; }
  };
  constexpr Seen seen_by(int key, int query) const {
    if (key >= keys) return {kNoBound, -kNoBound};
    return {band_of_keys().first(key) - query, band_of_keys().last(key) - query};
  }

  // Numbers the blocks of all heads. There are fewer than 2^30.
  constexpr int block_place(int in_batch, int head, int block) const {
    return (in_batch * heads + head) * query_blocks + block;
  }
  constexpr int all_blocks() const { return block_place(batch, 0, 0); }

  // How many tiles of the head come before this one at a block of queries that it goes through.
  constexpr int turn(int tile, int block) const { return tile - first_tile_of(block); }
  // Whether any does.
  constexpr bool has_tile(int block) const {
    const int first = first_tile_of(block);
    const IntRange blocks = blocks_of(first);
    return first < key_tiles && block >= blocks.begin && block < blocks.end;
  }

 private:
  // The band of keys that queries see.
  constexpr Band band() const { return {shift, window_left, window_right, keys}; }
  constexpr Band band_of_keys() const { return band().transposed(queries); }

  constexpr int first_tile_of(int block) const {
    return std::max(band().first(block * kBlockQueries), 0) / kTileKeys;
  }
};

}  // namespace transformer_kernels::cuda
