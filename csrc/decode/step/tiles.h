// SPDX-License-Identifier: MIT
// How packed weights lie in memory: tiles of 16 rows, one after another, each read once from its
// first byte to its last. A vector of 64 bytes holds a few neighbouring terms of all 16 rows, so a
// product needs no sum across lanes. Scales stand among the numbers that they belong to: a second
// stream, of scales alone, would cost a third of the rate, as the processor fetches one stream
// ahead.
//
//   float32    vectors of 1 term                     number [term][row]
//   float16    vectors of 2 terms                    number [term][row]
//   bfloat16   vectors of 2 terms                    number [pair of terms][row][term of the pair]
//   int8       vectors of 4 terms, plus 128          byte [four terms][row][term of the four]
//   int4       of 32 terms the first 16 in the low nibbles of such bytes, plus 8, the others in the
//              high ones
//
// Before each pair of blocks of 8 or 4 bits stand 64 bytes with the scales of both; where there are
// minimums, 64 bytes before each block hold its scales and then its minimums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/rounding.h"

namespace transformer_kernels::decode {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kVectorBytes = 64;
inline constexpr std::int64_t kLargestGroup = 128;
inline constexpr std::int64_t kSubBlock = 32;  // terms whose nibbles share bytes

enum class TileFormat : std::uint8_t { kFloat32, kFloat16, kBFloat16, kInt8, kInt4, kInt4Minimum };
inline constexpr int kTileFormats = 6;

constexpr bool has_blocks(TileFormat format) { return format >= TileFormat::kInt8; }

constexpr int bits_of(TileFormat format) {
  constexpr int kBits[kTileFormats] = {32, 16, 16, 8, 4, 4};
  return kBits[static_cast<int>(format)];
}

// The number that stands for 0 among the unsigned numbers of blocks.
constexpr int zero_of(TileFormat format) {
  constexpr int kZeros[kTileFormats] = {0, 0, 0, 128, 8, 0};
  return kZeros[static_cast<int>(format)];
}

struct TileLayout {
  TileFormat format;
  std::int64_t group;  // terms of a block; 1 where there are none
  std::int64_t terms;  // a multiple of `group`, or of 2

  constexpr std::int64_t groups() const { return terms / group; }
  constexpr std::int64_t block_bytes() const { return group * kTileRows * bits_of(format) / 8; }
  // Blocks that share 64 bytes of scales.
  constexpr std::int64_t sharing() const { return format == TileFormat::kInt4Minimum ? 1 : 2; }

  constexpr std::int64_t bytes() const {
    if (!has_blocks(format)) return terms * kTileRows * bits_of(format) / 8;
    return divide_up(groups(), sharing()) * kVectorBytes + groups() * block_bytes();
  }
  constexpr std::int64_t scales_at(std::int64_t block) const {
    const std::int64_t step = kVectorBytes + sharing() * block_bytes();
    return block / sharing() * step + block % sharing() * kVectorBytes / 2;
  }
  constexpr std::int64_t block_at(std::int64_t block) const {
    const std::int64_t step = kVectorBytes + sharing() * block_bytes();
    return block / sharing() * step + kVectorBytes + block % sharing() * block_bytes();
  }
};

// Rows of a weight, or some of its columns, as tiles. A row's terms begin with `lead` zeros where
// the columns begin inside a block, and end with zeros likewise.
struct PackedMatrix {
  TileLayout layout{};
  std::int64_t rows = 0;
  std::int64_t lead = 0;
  const std::byte* data = nullptr;

  std::int64_t tiles() const { return divide_up(rows, kTileRows); }
  std::int64_t padded_rows() const { return rounded_up(rows, kTileRows); }
  std::int64_t bytes() const { return tiles() * layout.bytes(); }
};

}  // namespace transformer_kernels::decode
