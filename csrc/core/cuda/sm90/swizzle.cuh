// SPDX-License-Identifier: MIT
// Rows in shared memory in TMA's swizzled layouts: the 16-byte pieces of a row are permuted, so
// that the same piece of eight neighbouring rows lies in different banks.
#pragma once

#include <cstdint>

namespace transformer_kernels::cuda {

// Rows of 64 or 128 bytes. `rows` starts at a multiple of 8 kRowBytes.
template <int kRowBytes>
__device__ __forceinline__ std::uint32_t swizzled(std::uint32_t rows, int row, int piece) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  const int mixed = kRowBytes == 128 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3);
  return rows + row * kRowBytes + mixed * 16;
}

// The address that this lane gives to ldmatrix or stmatrix, .x4, for a 16 x 16 tile of 16-bit
// elements that begins at row `row`, a multiple of 8, and piece `piece`. Matrices 0 and 1 are the
// tile's left half, 2 and 3 its right one, as a fragment of mma and wgmma wants them.
template <int kRowBytes>
__device__ __forceinline__ std::uint32_t swizzled_16x16(std::uint32_t rows, int row, int piece,
                                                        int lane) {
  return swizzled<kRowBytes>(rows + row * kRowBytes, lane % 16, piece + lane / 16);
}

// swizzled_16x16() for the .trans forms, of a tile whose rows are the fragment's columns: matrices
// 0 and 1 are the upper half of the tile, 2 and 3 its lower one.
template <int kRowBytes>
__device__ __forceinline__ std::uint32_t swizzled_16x16_trans(std::uint32_t rows, int row,
                                                              int piece, int lane) {
  return swizzled<kRowBytes>(rows + row * kRowBytes, lane / 16 * 8 + lane % 8,
                             piece + lane / 8 % 2);
}

}  // namespace transformer_kernels::cuda
