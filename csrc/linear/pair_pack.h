// SPDX-License-Identifier: MIT
// Operands of products of bfloat16, copied in pairs of terms in the order in which tiles read them.
// For sources that are compiled once per instruction set.
#pragma once

#include <algorithm>

#include "core/cpu/pair_transpose.h"
#include "linear/pack.h"

namespace transformer_kernels::cpu::TFK_ISA {

// What is copied at a time: 16 lines of an operand, and of each 16 pairs of terms. Lines and terms
// are filled up to whole squares with zeros.
inline constexpr std::int64_t kSquareLines = kPairSide;
inline constexpr std::int64_t kSquareTerms = 2 * kPairSide;

// In a vector of a square lie the pairs of a line, or a pair of each line.
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

// Whether lines of the source lie together, and its terms do not.
constexpr bool lies_by_terms(const Matrix& source) {
  return source.row_step == 1 && source.col_step != 1;
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

// Panels that lie next to each other are copied together where lines of the source are: its rows
// of memory are then read in long pieces.
template <PairOrder kTarget>
TFK_FLATTEN void pack_pairs(const PackTask& task, std::int64_t begin, std::int64_t end) {
  const std::int64_t panels = divide_up(task.lines, task.width);
  const std::int64_t panel_pairs = task.width * rounded_up(task.terms, kSquareTerms) / 2;
  for (std::int64_t block = begin; block < end;) {
    const std::int64_t panel = block % panels;
    const std::int64_t count =
        lies_by_terms(task.source) ? std::min({kPanelsAtOnce, end - block, panels - panel}) : 1;
    const Part part = part_of(task.terms, block / panels, kPairBlock.terms);
    auto* const target = static_cast<BFloat16Pair*>(task.target);
    for (std::int64_t term = part.first; term < part.first + part.terms; term += kSquareTerms) {
      for (std::int64_t i = panel; i < panel + count; ++i) {
        pack_step<kTarget>(task, i * task.width, term,
                           target + i * panel_pairs + term / 2 * task.width);
      }
    }
    block += count;
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
