// SPDX-License-Identifier: MIT
// The tiles of groups of rows, whose offsets lie in device memory.
#pragma once

#include "linear/cuda/units.cuh"
#include "linear/grouped_problem.h"

namespace transformer_kernels::cuda {
namespace groups {  // tools/kernel_budget.toml counts kernels of it by themselves

// A tile's rows: those of `group` from `row` on, of which there are `left`. number_row_tiles()
// makes a table of them, without empty ones.
struct alignas(16) RowTile {
  int group;
  int row;
  int left;
};

// The tiles of a product of groups, as a rectangle of row tiles and columns.
struct GroupedTiles {
  const RowTile* table;
  const int* rows;  // of the table
  int cols;         // in tiles
  int blocks;
  int most;  // no more tiles than these

  __device__ __forceinline__ TileOrder tiles() const { return {*rows, cols}; }
  __device__ __forceinline__ int count() const { return tiles().count(); }
  __device__ __forceinline__ GroupedUnit operator[](int i) const {
    const TilePlace place = tiles()[i];
    const RowTile own = table[place.row];
    return {place, blocks, own.group, own.row, own.left};
  }
};

// The tiles of gradients of weights, whose terms are the rows of a group.
struct GroupedTerms {
  static constexpr bool kMayLackTerms = true;
  static constexpr int kBlock = 64;  // terms of a stage

  const std::int32_t* offsets;
  int groups;
  TileOrder tiles;  // of a weight

  __host__ __device__ int count() const { return groups * tiles.count(); }
  __device__ __forceinline__ GroupedUnit operator[](int i) const {
    const int group = i / tiles.count();
    const int begin = offsets[group];
    const int rows = offsets[group + 1] - begin;
    return {tiles[i % tiles.count()], (rows + kBlock - 1) / kBlock, group, begin, rows};
  }
};

}  // namespace groups

using groups::GroupedTerms;
using groups::GroupedTiles;
using groups::RowTile;

}  // namespace transformer_kernels::cuda
