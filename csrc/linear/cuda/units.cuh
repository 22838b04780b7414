// SPDX-License-Identifier: MIT
// The work items of a product on tensor cores: tiles of its result, with all terms or some.
#pragma once

#include "core/cuda/tile_order.cuh"

namespace transformer_kernels::cuda {

// Rows and columns of a result.
struct GemmExtent {
  int rows;
  int cols;
};

// A work item: a tile's sums over some of the terms.
struct GemmUnit {
  TilePlace place;
  int part;         // the number of these terms' part
  int first_block;  // of the terms of a stage
  int blocks;
};

template <class Shape>
constexpr int first_row(const GemmUnit& unit) {
  return unit.place.row * Shape::kRows;
}
constexpr int group_of(const GemmUnit&) { return 0; }

// A work item of groups of rows: a tile of a group.
struct GroupedUnit {
  TilePlace place;
  int blocks;  // of terms
  int group;
  int row;   // the first one, of the rows of all groups
  int rows;  // from there to the end of the group
};
template <class Shape>
constexpr int first_row(const GroupedUnit& unit) {
  return unit.row;
}
constexpr int group_of(const GroupedUnit& unit) { return unit.group; }

// ------------------------------------------------------------------ the units of a product

// Every tile of the result, with all terms.
struct WholeTiles {
  TileOrder tiles;
  int blocks;

  __host__ __device__ int count() const { return tiles.count(); }
  __device__ __forceinline__ GemmUnit operator[](int i) const { return {tiles[i], 0, 0, blocks}; }
};

// Every tile of the result for each part of the terms. The last part may have fewer.
struct PartsOfTerms {
  TileOrder tiles;
  int blocks;
  int parts;
  int blocks_of_part;

  __host__ __device__ int count() const { return tiles.count() * parts; }
  __device__ __forceinline__ GemmUnit operator[](int i) const {
    const int part = i / tiles.count();
    const int first = part * blocks_of_part;
    return {tiles[i % tiles.count()], part, first, min(blocks_of_part, blocks - first)};
  }
};

}  // namespace transformer_kernels::cuda
