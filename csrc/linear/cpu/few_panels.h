// SPDX-License-Identifier: MIT
// The innermost loop of few-row products whose weight is packed: panels of columns, of which each
// term is a few vectors. The whole weight is one line of bytes, which the processor fetches as fast
// as memory gives them, and a number of the left operand serves a whole panel. For sources that are
// compiled once per instruction set.
#pragma once

#include "core/cpu/sums.h"
#include "linear/cpu/row_tiles.h"
#if TFK_ISA_LEVEL >= 3
#include "core/cpu/bfloat16_pair.h"
#endif

namespace transformer_kernels::cpu::TFK_ISA {

// Calls add(term of the element, vector of the sums' type) for each number of an element's vector.
template <class A, class Add>
TFK_INLINE void for_each_number(Vec<A> element, Add&& add) {
  add(0, element);
}
#if TFK_ISA_LEVEL >= 3
template <class Add>
TFK_INLINE void for_each_number(VecP pair, Add&& add) {
  add(0, VecF{_mm512_castsi512_ps(_mm512_slli_epi32(pair.v, 16))});
  add(1, VecF{_mm512_castsi512_ps(_mm512_and_si512(pair.v, _mm512_set1_epi32(-65536)))});
}
#endif

// Adds `count` elements of a panel times rows of x, which is in order as [term][row of the tile],
// `x_step` apart. Registers hold all sums of kRows rows.
template <class F, int kVectors, int kRows>
TFK_INLINE void add_rows(const sum_t<F>* x, std::int64_t x_step, const F* right, std::int64_t count,
                         sum_t<F>* sums, std::int64_t sums_step) {
  using S = Vec<sum_t<F>>;
  constexpr std::int64_t kTerms = __is_same(F, sum_t<F>) ? 1 : 2;  // of an element
  constexpr std::int64_t kAhead = 4096;                            // bytes
  S sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = S::of(0);
  }
  for (std::int64_t k = 0; k < count; ++k) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const F* const p = right + v * Vec<F>::kLanes;
      prefetch(reinterpret_cast<const char*>(p) + kAhead);
      for_each_number(load(p, All{}), [&](int term, S numbers) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          sum[r][v] = fma(S::of(x[term * x_step + r]), numbers, sum[r][v]);
        }
      });
    }
    x += kTerms * x_step;
    right += kVectors * Vec<F>::kLanes;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum_t<F>* const place = sums + r * sums_step + v * S::kLanes;
      store(place, load(place, All{}) + sum[r][v], All{});
    }
  }
}

// The rows of a tile, as many at a time as registers hold.
template <class F, int kVectors, int kRows>
TFK_FLATTEN void add_panel(const sum_t<F>* x, const F* right, std::int64_t count, sum_t<F>* sums,
                           std::int64_t sums_step) {
  constexpr int kSome = std::min(kRows, kVectorRegisters >= 32 ? 8 : 4);
  for (int row = 0; row < kRows; row += kSome) {
    add_rows<F, kVectors, kSome>(x + row, kRows, right, count, sums + row * sums_step, sums_step);
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
