// SPDX-License-Identifier: MIT
// Rows of bfloat16 rearranged into the operand layouts of pair_multiply.h. For sources that are
// compiled once per instruction set.
#pragma once

#include "core/cpu/bfloat16_pair.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr int kPairSide = Vec<BFloat16Pair>::kLanes;  // pairs in a vector

TFK_INLINE const BFloat16Pair* as_pairs(const void* elements) {
  return static_cast<const BFloat16Pair*>(elements);
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

}  // namespace transformer_kernels::cpu::TFK_ISA
