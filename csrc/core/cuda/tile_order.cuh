// SPDX-License-Identifier: MIT
// The order in which the CTAs of a persistent kernel walk over the tiles of a matrix.
#pragma once

namespace transformer_kernels::cuda {

struct TilePlace {
  int row;  // in tiles
  int col;
};

// Bands of a few rows of tiles, column by column: CTAs that run at the same time share rows of one
// operand and columns of the other, which L2 holds.
struct TileOrder {
  static constexpr int kBand = 8;

  int rows;  // in tiles
  int cols;

  __host__ __device__ int count() const { return rows * cols; }

  __host__ __device__ TilePlace operator[](int tile) const {
    const int per_band = kBand * cols;
    const int first = tile / per_band * kBand;
    const int height = kBand < rows - first ? kBand : rows - first;
    const int within = tile % per_band;
    return {first + within % height, within / height};
  }
};

}  // namespace transformer_kernels::cuda
