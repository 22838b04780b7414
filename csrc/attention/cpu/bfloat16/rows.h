// SPDX-License-Identifier: MIT
// Rows of bfloat16 rearranged into the operand layouts of products of pairs. For sources that are
// compiled once per instruction set.
#pragma once

#include "attention/cpu/kernels.h"
#include "attention/cpu/scores.h"
#include "core/cpu/pair_multiply.h"
#include "core/cpu/pair_transpose.h"

namespace transformer_kernels::cpu::TFK_ISA {

static_assert(kPairCols == kKeyStep);

// Terms of a sum over the dimensions of a head: whole vectors of pairs.
constexpr std::int64_t paired_dim(std::int64_t dim) { return rounded_up(dim, 2 * kPairSide); }

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
