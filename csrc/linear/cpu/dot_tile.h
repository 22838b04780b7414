// SPDX-License-Identifier: MIT
// The innermost loop of few-row products whose weight has its contracted dimension contiguous: some
// lines of the weight times kRows rows of the left operand, with each result a vector of partial
// sums in a register. For sources that are compiled once per instruction set.
#pragma once

#include <algorithm>

#include "core/cpu/row_loop.h"
#include "linear/cpu/row_tiles.h"

namespace transformer_kernels::cpu::TFK_ISA {

// The number of sums that fit in registers beside their addends, which also bounds the streams from
// memory. Each sum has one chain of additions whatever kRows is: a row of the result does not
// depend on the number of rows.
inline constexpr int kFewSums = kVectorRegisters >= 32 ? 16 : 8;
template <int kRows>
inline constexpr int kLines = std::min(kFewSums / kRows, 8);
inline constexpr std::int64_t kLineGroup = 8;  // lines that stay in the cache for all tiles of rows

// How far from the terms that a line loads it fetches: so many bytes, and from term `last` on the
// first ones of the lines that come next, `next` bytes away.
struct Ahead {
  static constexpr std::int64_t kBytes = 1024;

  std::int64_t last;
  std::int64_t next;

  // The distances for lines of `terms` terms, where the next lines begin `step` bytes further on.
  template <class Line>
  TFK_INLINE static Ahead of(std::int64_t terms, std::int64_t step) {
    const std::int64_t far = terms - kBytes * 8 / Line::kBits;
    const std::int64_t last = far > 0 ? far / Line::kStep * Line::kStep : 0;
    return {last, step - last * Line::kBits / 8};
  }
};

template <class F>
TFK_INLINE Vec<F> add_products(Vec<F> a, Vec<F> b, Vec<F> sum) {
  return fma(a, b, sum);
}
template <class V>
TFK_INLINE V add_products(Two<V> a, Two<V> b, V sum) {
  return fma(a.b, b.b, fma(a.a, b.a, sum));
}
#if TFK_ISA_LEVEL == 1 || TFK_ISA_LEVEL == 2
TFK_INLINE VecF add_products(Pair a, Pair b, VecF sum) {
  return fma(a.odd, b.odd, fma(a.even, b.even, sum));
}
#endif

// Sums of kCount lines and kRows rows. A Line has kStep, the terms that it loads at a time as
// load(k, lanes) does, fetch(k, bytes), and row(p), which loads as many of the left operand; there
// terms are in order as [step][row][term of the step].
template <class Line, int kCount, int kRows>
struct DotTile {
  using F = typename Line::Sum;

  const F* x;  // moves on with each step
  Vec<F> sum[kCount][kRows];

  TFK_INLINE explicit DotTile(const F* from) : x(from) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[i][r] = Vec<F>::of(0);
    }
  }

  template <class Lanes>
  TFK_INLINE void add_step(const Line (&lines)[kCount], std::int64_t k, Lanes lanes) {
    typename Line::Vector weight[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) weight[i] = lines[i].load(k, lanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const typename Line::Vector row = Line::row(x + r * Line::kStep);
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) sum[i][r] = add_products(weight[i], row, sum[i][r]);
    }
    x += kRows * Line::kStep;
  }

  // Whole steps of [begin, end); where they end.
  TFK_INLINE std::int64_t add_steps(const Line (&lines)[kCount], std::int64_t begin,
                                    std::int64_t end, const Ahead& ahead) {
    const std::int64_t near = add_some(lines, begin, std::min(end, ahead.last), Ahead::kBytes);
    return add_some(lines, near, end, ahead.next);
  }

  TFK_INLINE std::int64_t add_some(const Line (&lines)[kCount], std::int64_t begin,
                                   std::int64_t end, std::int64_t fetched) {
    std::int64_t k = begin;
    for (; k + Line::kStep <= end; k += Line::kStep) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) lines[i].fetch(k, fetched);
      add_step(lines, k, All{});
    }
    return k;
  }

  // Sums of line i go to column i.
  TFK_INLINE void store_to(F* sums, std::int64_t row_step, std::int64_t lines) const {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      if (i >= lines) break;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums[r * row_step + i] = reduce_add(sum[i][r]);
    }
  }
};

// Calls body.operator()<rows of a tile>(first row, first column, columns) for columns
// [0, cols), as many at a time as a tile has lines; groups of lines pass all rows before the next.
template <class Body>
TFK_INLINE void for_each_dot_tile(std::int64_t rows, std::int64_t cols, Body&& body) {
  for (std::int64_t group = 0; group < cols; group += kLineGroup) {
    const std::int64_t end = std::min(group + kLineGroup, cols);
    for_each_row_tile(rows, [&]<int kRows>(std::int64_t row) {
      for (std::int64_t col = group; col < end; col += kLines<kRows>) {
        body.template operator()<kRows>(row, col, end - col);
      }
    });
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
