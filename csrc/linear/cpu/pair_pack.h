// SPDX-License-Identifier: MIT
// Copies of bfloat16 GEMM operands, in pairs of terms in the order in which tiles read them. For
// sources that are compiled once per instruction set.
#pragma once

#include <algorithm>

#include "core/cpu/pair_transpose.h"
#include "linear/cpu/pack.h"

namespace transformer_kernels::cpu::TFK_ISA {

// A square is copied at a time: 16 lines of an operand, and of each line 16 pairs of terms. Lines
// and terms are padded to whole squares with zeros.
inline constexpr std::int64_t kSquareLines = kPairSide;
inline constexpr std::int64_t kSquareTerms = 2 * kPairSide;

// The contents of a vector of a square: the pairs of one line, or one pair of each line.
enum class PairOrder : std::uint8_t { kLine, kPair };

// One of the source's steps is 1.
template <PairOrder kSource, PairOrder kTarget>
TFK_INLINE void copy_square(const Matrix& source, BFloat16Pair* target, std::int64_t step) {
  const auto* const data = static_cast<const BFloat16*>(source.data);
  VecP square[kPairSide];
#pragma GCC unroll 16
  for (int i = 0; i < kPairSide; ++i) {
    if constexpr (kSource == PairOrder::kLine) {
      square[i] = load(as_pairs(data + i * source.row_step), All{});
    } else {
      const BFloat16* const first = data + 2 * i * source.col_step;
      square[i] = paired(first, first + source.col_step);
    }
  }
  if constexpr (kSource != kTarget) transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < kPairSide; ++i) store(target + i * step, square[i], All{});
}

// A part of a square with zeros around it, which lies as its source does.
struct StagedSquare {
  BFloat16 data[kSquareLines * kSquareTerms];

  Matrix fill(const Matrix& source, std::int64_t lines, std::int64_t terms) {
    const bool by_terms = lies_by_terms(source);
    const Matrix from = by_terms ? source.transposed() : source;
    const std::int64_t width = by_terms ? kSquareLines : kSquareTerms;
    if (by_terms) std::swap(lines, terms);
    __builtin_memset(data, 0, sizeof(data));
    for (std::int64_t i = 0; i < lines; ++i) {
      const auto* const row = static_cast<const BFloat16*>(from.data) + i * from.row_step;
      for (std::int64_t j = 0; j < terms; ++j) data[i * width + j] = row[j * from.col_step];
    }
    return by_terms ? Matrix{data, 1, width} : Matrix{data, width, 1};
  }
};

template <PairOrder kTarget>
TFK_INLINE void pack_square(Matrix source, std::int64_t lines, std::int64_t terms,
                            BFloat16Pair* target, std::int64_t step) {
  StagedSquare staged;
  const bool whole = lines >= kSquareLines && terms >= kSquareTerms;
  if (!whole || (source.row_step != 1 && source.col_step != 1)) {
    source = staged.fill(source, std::clamp<std::int64_t>(lines, 0, kSquareLines),
                         std::min(terms, kSquareTerms));
  }
  if (lies_by_terms(source)) {
    copy_square<PairOrder::kPair, kTarget>(source, target, step);
  } else {
    copy_square<PairOrder::kLine, kTarget>(source, target, step);
  }
}

TFK_INLINE Matrix matrix_at(const Matrix& m, std::int64_t row, std::int64_t col) {
  return {static_cast<BFloat16*>(m.data) + row * m.row_step + col * m.col_step, m.row_step,
          m.col_step};
}

// kSquareTerms terms of a panel's lines.
template <PairOrder kTarget>
TFK_INLINE void pack_step(const PackTask& task, std::int64_t line, std::int64_t term,
                          BFloat16Pair* target) {
  constexpr bool kByLine = kTarget == PairOrder::kLine;
  for (std::int64_t i = 0; i < task.width; i += kSquareLines) {
    pack_square<kTarget>(matrix_at(task.source, line + i, term), task.lines - line - i,
                         task.terms - term, target + i * (kByLine ? kPairSide : 1),
                         kByLine ? kPairSide : task.width);
  }
}

template <PairOrder kTarget>
TFK_FLATTEN void pack_pairs(const PackTask& task, std::int64_t begin, std::int64_t end) {
  const std::int64_t panel_pairs = task.width * rounded_up(task.terms, kSquareTerms) / 2;
  auto* const target = static_cast<BFloat16Pair*>(task.target);
  for_each_run(task, begin, end, [&](std::int64_t panel, std::int64_t count, std::int64_t index) {
    const Part part = part_of(task.terms, index, kPairBlock.terms);
    for (std::int64_t term = part.first; term < part.first + part.terms; term += kSquareTerms) {
      for (std::int64_t i = panel; i < panel + count; ++i) {
        pack_step<kTarget>(task, i * task.width, term,
                           target + i * panel_pairs + term / 2 * task.width);
      }
    }
  });
}

}  // namespace transformer_kernels::cpu::TFK_ISA
