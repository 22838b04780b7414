// SPDX-License-Identifier: MIT
// Products of a packed matrix with rows of activations. A tile is read once from memory for as many
// rows as the registers have room for, and again from the nearest cache for those that follow. The
// sums of a row have one order, however many rows there are. For sources that are compiled once per
// instruction set.
#pragma once

#include <type_traits>

#include "decode/step/kernels.h"
#include "decode/step/lanes.h"

namespace transformer_kernels::cpu::TFK_ISA {

using decode::Activations;
using decode::ProductTask;
using decode::TileFormat;
using decode::TileLayout;

// ---- weights of 32 and 16 bits ------------------------------------------------------------------

template <TileFormat kFormat>
TFK_INLINE TermPair load_terms(const std::byte* p) {
  if constexpr (kFormat == TileFormat::kBFloat16) {
    return load_pairs(p);
  } else {
    using T = std::conditional_t<kFormat == TileFormat::kFloat32, float, Half>;
    const auto* const numbers = reinterpret_cast<const T*>(p);
    return {Floats::load(numbers), Floats::load(numbers + 16)};
  }
}

// Even and odd terms are summed apart, so that one addition need not wait for the other.
template <TileFormat kFormat, int kRows>
TFK_INLINE void float_tile(const ProductTask& task, const std::byte* tile, std::int64_t row,
                           Floats (&out)[kRows]) {
  constexpr std::int64_t kPairBytes = 2 * 16 * decode::bits_of(kFormat) / 8;
  const std::int64_t stride = task.x.stride;
  const float* x = task.x.numbers + row * stride;
  Floats odd[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) out[r] = odd[r] = Floats::of(0);
  for (std::int64_t k = 0; k < task.matrix.layout.terms; k += 2, tile += kPairBytes) {
    const TermPair w = load_terms<kFormat>(tile);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      out[r] = fma(w.first, Vec<float>::of(x[r * stride + k]), out[r]);
      odd[r] = fma(w.second, Vec<float>::of(x[r * stride + k + 1]), odd[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) out[r] = out[r] + odd[r];
}

// ---- weights in blocks of 8 and 4 bits ----------------------------------------------------------

// Adds 32 terms of a block, and moves past their bytes.
template <TileFormat kFormat, bool kWide, int kRows>
TFK_INLINE void add_terms(const std::byte*& tile, const Codes (&codes)[kRows], std::int64_t term,
                          Dot<kWide> (&dot)[kRows]) {
  constexpr bool kNibbles = decode::bits_of(kFormat) == 4;
#pragma GCC unroll 8
  for (int i = 0; i < (kNibbles ? 4 : 8); ++i, term += 4, tile += decode::kVectorBytes) {
    const Line w = Line::load(tile);
    const Line low = kNibbles ? w.low() : w;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) dot[r].add(low, codes[r], term);
    if constexpr (kNibbles) {
      const Line high = w.high();
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) dot[r].add(high, codes[r], term + decode::kSubBlock / 2);
    }
  }
}

template <TileFormat kFormat, bool kWide, int kRows>
TFK_INLINE void block_tile(const ProductTask& task, const std::byte* tile, std::int64_t row,
                           Floats (&out)[kRows]) {
  constexpr bool kHasMinimum = kFormat == TileFormat::kInt4Minimum;
  const TileLayout& layout = task.matrix.layout;
  const Activations& x = task.x;
  const float* const scales = x.scales + row * x.groups;
  const std::int32_t* const sums = x.sums + row * x.groups;
  Codes codes[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    codes[r] = Codes::at(x.codes + (row + r) * 2 * x.stride, x.stride);
    out[r] = Floats::of(0);
  }
  const Half* factors = nullptr;
  for (std::int64_t g = 0, term = 0; g < layout.groups(); ++g) {
    if (kHasMinimum || g % 2 == 0) {
      factors = reinterpret_cast<const Half*>(tile);
      tile += decode::kVectorBytes;
    } else {
      factors += 16;
    }
    Dot<kWide> dot[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      dot[r] = Dot<kWide>::of(-decode::zero_of(kFormat) * sums[r * x.groups + g]);
    }
    for (const std::int64_t end = term + layout.group; term < end; term += decode::kSubBlock) {
      add_terms<kFormat, kWide>(tile, codes, term, dot);
    }
    const Floats scale = Floats::load(factors);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec<float> own = Vec<float>::of(scales[r * x.groups + g]);
      out[r] = fma(dot[r].sum(), scale * own, out[r]);
      if constexpr (kHasMinimum) {
        const auto sum = Vec<float>::of(static_cast<float>(sums[r * x.groups + g])) * own;
        out[r] = fma(Floats::load(factors + 16), sum, out[r]);
      }
    }
  }
}

// ---- all rows and tiles -------------------------------------------------------------------------

template <TileFormat kFormat, bool kWide, int kRows>
TFK_INLINE void multiply_rows(const ProductTask& task, const std::byte* tile, std::int64_t& row,
                              float* out) {
  for (; task.rows - row >= kRows; row += kRows) {
    Floats sums[kRows];
    if constexpr (decode::has_blocks(kFormat)) {
      block_tile<kFormat, kWide, kRows>(task, tile, row, sums);
    } else {
      float_tile<kFormat, kRows>(task, tile, row, sums);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[r].store_to(out + (row + r) * task.out_stride);
  }
}

template <TileFormat kFormat, bool kWide>
TFK_FLATTEN void multiply(const ProductTask& task) {
  const std::byte* tile = task.matrix.data;
  const std::int64_t bytes = task.matrix.layout.bytes();
  for (std::int64_t i = 0; i < task.matrix.tiles(); ++i, tile += bytes) {
    std::int64_t row = 0;
    float* const out = task.out + i * decode::kTileRows;
#if TFK_ISA_LEVEL >= 2
    multiply_rows<kFormat, kWide, 8>(task, tile, row, out);
    multiply_rows<kFormat, kWide, 4>(task, tile, row, out);
#endif
    multiply_rows<kFormat, kWide, 2>(task, tile, row, out);
    multiply_rows<kFormat, kWide, 1>(task, tile, row, out);
  }
}

// ---- activations in whole numbers ---------------------------------------------------------------

// Numbers up to 2^22 are rounded to the nearest whole one, of two the even one, where they are
// added to this: the last bits of the sum are the number.
inline constexpr float kRounder = 0x1.8p23f;

template <bool kWide>
TFK_FLATTEN void quantize(const Activations& x, std::int64_t row, std::int64_t terms,
                          std::int64_t group) {
  // Above 127 * 256 + 127 a number would not be 256 times a signed byte plus another.
  constexpr float kLimit = kWide ? 127 * 256 : 127;
  const float* number = x.numbers + row * x.stride;
  std::byte* const codes = x.codes + row * 2 * x.stride;
  for (std::int64_t g = 0; g < terms / group; ++g, number += group) {
    // Bits of positive floats are in the order of the numbers.
    std::uint32_t most = 0;
    for (std::int64_t i = 0; i < group; ++i) {
      const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, number[i]) & 0x7fffffff;
      most = bits > most ? bits : most;
    }
    const float top = __builtin_bit_cast(float, most);
    // Sums of codes of a number that is not finite would overflow; its scale is not finite either.
    const bool is_finite = most < 0x7f800000;
    const float factor = top > 0x1p-100f ? kLimit / top : 0;
    std::uint32_t sum = 0;
    for (std::int64_t i = 0; i < group; ++i) {
      const float finite = is_finite ? number[i] : 0;
      const auto bits = __builtin_bit_cast(std::uint32_t, finite * factor + kRounder);
      const std::uint32_t code = bits - __builtin_bit_cast(std::uint32_t, kRounder);
      sum += code;
      store_code(codes, x.stride, g * group + i, static_cast<std::int32_t>(code), kWide);
    }
    x.scales[row * x.groups + g] = top / kLimit;
    x.sums[row * x.groups + g] = static_cast<std::int32_t>(sum);
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
