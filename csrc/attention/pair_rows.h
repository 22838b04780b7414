// SPDX-License-Identifier: MIT
// Rows of bfloat16 in the orders that products of pairs want. For sources that are compiled once
// per instruction set.
#pragma once

#include "attention/pair_multiply.h"
#include "attention/score_row.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr int kPairSide = Vec<BFloat16Pair>::kLanes;  // pairs in a vector

// Terms of a sum over the dimensions of a head: whole vectors of pairs.
constexpr std::int64_t paired_dim(std::int64_t dim) { return rounded_up(dim, 2 * kPairSide); }

TFK_INLINE const BFloat16Pair* as_pairs(const void* elements) {
  return static_cast<const BFloat16Pair*>(elements);
}

// `rows` rows of a head, with zeros past `dim` and past the first `count` rows, and a request for
// those that follow, up to row `end`.
inline void copy_rows(const HeadRows& source, std::int64_t batch, std::int64_t first,
                      std::int64_t head, std::int64_t count, std::int64_t dim, BFloat16* target,
                      std::int64_t rows, std::int64_t step, std::int64_t end) {
  constexpr DType kType = DType::kBFloat16;
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t later = std::min(first + r + kRowsAhead, end - 1);
    prefetch_row(source.address(kType, batch, later, head), dim * size_of(kType));
    BFloat16* const row = target + r * step;
    __builtin_memcpy(row, source.address(kType, batch, first + r, head), dim * sizeof(BFloat16));
    __builtin_memset(row + dim, 0, (step - dim) * sizeof(BFloat16));
  }
  __builtin_memset(target + count * step, 0, (rows - count) * step * sizeof(BFloat16));
}

// target[col][row / 2], in rows of `target_step` pairs, from rows of `step` elements: 32 rows and
// 16 columns at a time.
TFK_FLATTEN inline void transpose_elements(const BFloat16* source, std::int64_t step,
                                           std::int64_t rows, std::int64_t cols,
                                           BFloat16Pair* target, std::int64_t target_step) {
  for (std::int64_t row = 0; row < rows; row += 2 * kPairSide) {
    for (std::int64_t col = 0; col < cols; col += kPairSide) {
      VecP block[kPairSide];
#pragma GCC unroll 16
      for (int i = 0; i < kPairSide; ++i) {
        const BFloat16* const first = source + (row + 2 * i) * step + col;
        block[i] = paired(first, first + step);
      }
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kPairSide; ++i) {
        store(target + (col + i) * target_step + row / 2, block[i], All{});
      }
    }
  }
}

// target[pair of columns][row], in rows of `target_step` pairs, of kPairSide rows.
TFK_FLATTEN inline void transpose_pairs(const BFloat16* source, std::int64_t step,
                                        std::int64_t cols, BFloat16Pair* target,
                                        std::int64_t target_step) {
  for (std::int64_t pair = 0; pair < cols / 2; pair += kPairSide) {
    VecP block[kPairSide];
#pragma GCC unroll 16
    for (int i = 0; i < kPairSide; ++i) {
      block[i] = load(as_pairs(source + i * step) + pair, All{});
    }
    transpose(block);
#pragma GCC unroll 16
    for (int i = 0; i < kPairSide; ++i) {
      store(target + (pair + i) * target_step, block[i], All{});
    }
  }
}

// target[row / 2][col], of `rows` rows.
TFK_FLATTEN inline void pair_rows(const BFloat16* source, std::int64_t step, std::int64_t rows,
                                  std::int64_t cols, BFloat16Pair* target,
                                  std::int64_t target_step) {
  for (std::int64_t row = 0; row < rows; row += 2) {
    const BFloat16* const first = source + row * step;
    for (std::int64_t col = 0; col < cols; col += kPairSide) {
      store(target + row / 2 * target_step + col, paired(first + col, first + step + col), All{});
    }
  }
}

// Columns of float become rows: `cols` of them, each of `rows` numbers; both multiples of 16.
TFK_FLATTEN inline void transpose_floats(const float* source, std::int64_t step, std::int64_t rows,
                                         std::int64_t cols, float* target,
                                         std::int64_t target_step) {
  for (std::int64_t row = 0; row < rows; row += kPairSide) {
    for (std::int64_t col = 0; col < cols; col += kPairSide) {
      VecF block[kPairSide];
#pragma GCC unroll 16
      for (int i = 0; i < kPairSide; ++i) {
        block[i] = load(source + (row + i) * step + col, All{});
      }
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kPairSide; ++i) {
        store(target + (col + i) * target_step + row, block[i], All{});
      }
    }
  }
}

// Packs keys of k or v. `columns` holds pairs along a row, for all keys of a block in turn, `rows`
// pairs of neighbouring keys, in rows spread_dim() pairs apart.
inline void pack_pairs(const void* source, DType, std::int64_t row_stride, std::int64_t keys,
                       std::int64_t dim, PackedRows target) {
  const std::int64_t step = paired_dim(dim);
  const HeadRows rows{const_cast<void*>(source), 0, row_stride, 0};
  BFloat16 block[kPairSide * paired_dim(kMostDim)];
  for (std::int64_t key = 0; key < rounded_up(keys, kKeyStep); key += kPairSide) {
    const std::int64_t count = std::clamp<std::int64_t>(keys - key, 0, kPairSide);
    copy_rows(rows, 0, key, 0, count, dim, block, kPairSide, step, keys);
    if (target.columns != nullptr) {
      auto* const columns = static_cast<BFloat16Pair*>(target.columns) +
                            key / kKeyStep * kKeyStep * step / 2 + key % kKeyStep;
      transpose_pairs(block, step, step, columns, kKeyStep);
    }
    if (target.rows != nullptr) {
      const std::int64_t spread = spread_dim(dim);
      auto* const packed = static_cast<BFloat16Pair*>(target.rows) + key / 2 * spread;
      pair_rows(block, step, kPairSide, padded_dim(dim), packed, spread);
    }
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
