// SPDX-License-Identifier: MIT
// Products of few rows. Compiled once per instruction set; see core/cpu/isa.h.
#include "linear/cpu/few_rows.h"

#include <memory>

#include "linear/cpu/dot_tile.h"
#include "linear/cpu/finish.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// ---- a weight whose terms lie together ----------------------------------------------------------

template <class T>
struct PlainLine {
  using Sum = accumulate_t<T>;
  using Vector = vec_t<T>;
  static constexpr int kStep = Vector::kLanes;
  static constexpr int kBits = 8 * sizeof(T);

  const T* data;

  template <class Lanes>
  TFK_INLINE Vector load(std::int64_t k, Lanes lanes) const {
    return TFK_ISA::load(data + k, lanes);
  }
  TFK_INLINE void fetch(std::int64_t k, std::int64_t bytes) const {
    prefetch(reinterpret_cast<const char*>(data + k) + bytes);
  }
  TFK_INLINE static Vector row(const Sum* p) { return load_wide<T>(p, All{}); }
};

template <class T, int kRows>
TFK_FLATTEN void dot_tile(const Product& p, std::int64_t col, std::int64_t cols,
                          const accumulate_t<T>* x, accumulate_t<T>* sums) {
  constexpr int kCount = kLines<kRows>;
  PlainLine<T> lines[kCount];
  for (int i = 0; i < kCount; ++i) {
    const std::int64_t line = col + std::min<std::int64_t>(i, cols - 1);
    lines[i].data = static_cast<const T*>(p.b.data) + line * p.b.col_step;
  }
  DotTile<PlainLine<T>, kCount, kRows> tile(x);
  const std::int64_t step = kCount * p.b.col_step * static_cast<std::int64_t>(sizeof(T));
  const Ahead ahead = Ahead::of<PlainLine<T>>(p.terms, step);
  const std::int64_t rest = tile.add_steps(lines, 0, p.terms, ahead);
  if (rest < p.terms) tile.add_step(lines, rest, First{p.terms - rest});
  tile.store_to(sums, kFewCols, cols);
}

template <class T>
void dot_columns(const FewRowsTask& task, std::int64_t begin, std::int64_t end) {
  using F = accumulate_t<T>;
  const Product& p = task.product;
  alignas(64) F sums[kFewRows * kFewCols];
  for (std::int64_t first = begin * kFewCols; first < end * kFewCols; first += kFewCols) {
    const std::int64_t cols = std::min(kFewCols, p.cols - first);
    for_each_dot_tile(
        p.rows, cols, [&]<int kRows>(std::int64_t row, std::int64_t col, std::int64_t some) {
          dot_tile<T, kRows>(p, first + col, some,
                             static_cast<const F*>(task.left) + row * padded_terms(p.terms),
                             sums + row * kFewCols + col);
        });
    finish_block<T>(p, task.activations, {0, first, p.rows, cols}, {sums, kFewCols});
  }
}

// ---- a weight whose lines lie together ----------------------------------------------------------

constexpr std::int64_t kPartTerms = 32;  // whose part of the weight stays in the first cache
constexpr std::int64_t kWideCols = 8 * kFewCols;

// Vectors of columns; those of pairs take two registers.
template <class T, int kRows>
constexpr int kAcross = std::max(kLines<kRows> / (InOrder<T> ? 1 : 2), 1);

// Adds `terms` terms of kAcross vectors of columns to the sums of kRows rows. `next` is fetched
// meanwhile, as much as is read.
template <class T, int kRows>
TFK_FLATTEN void axpy_tile(const accumulate_t<T>* x, const T* weight, std::int64_t term_step,
                           std::int64_t terms, const T* next, accumulate_t<T>* sums) {
  using V = vec_t<T>;
  constexpr int kVectors = kAcross<T, kRows>;
  constexpr int kLineElements = 64 / sizeof(T);
  V sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = load_as<T>(sums + r * kWideCols + v * V::kLanes, All{});
    }
  }
  for (std::int64_t k = 0; k < terms; ++k) {
    V row[kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors * V::kLanes; i += kLineElements) prefetch(next + i);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = load(weight + v * V::kLanes, All{});
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V number = V::of(x[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(number, row[v], sum[r][v]);
    }
    x += kRows;
    weight += term_step;
    next += term_step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      store(sums + r * kWideCols + v * V::kLanes, sum[r][v], All{});
    }
  }
}

// One part of the terms, for columns [col, col + cols). A tile that the columns do not fill is
// copied first, so that it ends in zeros.
template <class T, int kRows>
void axpy_part(const Product& p, const accumulate_t<T>* x, std::int64_t first, std::int64_t terms,
               std::int64_t col, std::int64_t cols, accumulate_t<T>* sums) {
  constexpr std::int64_t kTileCols = kAcross<T, kRows> * vec_t<T>::kLanes;
  const std::int64_t step = p.b.row_step;
  const T* const weight = static_cast<const T*>(p.b.data) + first * step + col;
  for (std::int64_t c = 0; c < cols; c += kTileCols) {
    const T* const next = weight + (c + kTileCols < cols ? c + kTileCols : kPartTerms * step);
    if (c + kTileCols <= cols) {
      axpy_tile<T, kRows>(x, weight + c, step, terms, next, sums + c);
      continue;
    }
    T filled[kPartTerms * kTileCols] = {};
    for (std::int64_t k = 0; k < terms; ++k) {
      __builtin_memcpy(filled + k * kTileCols, weight + c + k * step, (cols - c) * sizeof(T));
    }
    axpy_tile<T, kRows>(x, filled, kTileCols, terms, filled, sums + c);
  }
}

template <class T>
void axpy_columns(const FewRowsTask& task, std::int64_t begin, std::int64_t end) {
  using F = accumulate_t<T>;
  struct alignas(64) Sums {
    F data[kFewRows * kWideCols];
  };
  const Product& p = task.product;
  const std::unique_ptr<Sums> sums(new Sums);
  const std::int64_t last = std::min(end * kFewCols, p.cols);
  for (std::int64_t col = begin * kFewCols; col < last; col += kWideCols) {
    const std::int64_t cols = std::min(kWideCols, last - col);
    __builtin_memset(sums->data, 0, padded_rows(p.rows) * kWideCols * sizeof(F));
    for (std::int64_t k = 0; k < p.terms; k += kPartTerms) {
      const std::int64_t terms = std::min(kPartTerms, p.terms - k);
      for_each_row_tile(p.rows, [&]<int kRows>(std::int64_t row) {
        const F* const x =
            static_cast<const F*>(task.left) + row * padded_terms(p.terms) + k * kRows;
        axpy_part<T, kRows>(p, x, k, terms, col, cols, sums->data + row * kWideCols);
      });
    }
    finish_block<T>(p, task.activations, {0, col, p.rows, cols}, {sums->data, kWideCols});
  }
}

// ---- the left operand ---------------------------------------------------------------------------

// One row of the left operand, `place` among `rows` of a tile. The terms of a step lie together as
// wide rows have them, for products by lines each lies with those of the other rows.
template <class T>
TFK_FLATTEN void arrange_row(const Product& p, const T* source, std::int64_t place,
                             std::int64_t rows, accumulate_t<T>* tile) {
  constexpr std::int64_t kStep = vec_t<T>::kLanes;
  const bool dot = is_by_terms(p);
  for (std::int64_t k = 0; k < p.terms; k += kStep) {
    const std::int64_t count = std::min(kStep, p.terms - k);
    T staged[kStep] = {};
    for (std::int64_t i = 0; i < count; ++i) staged[i] = source[(k + i) * p.a.col_step];
    const vec_t<T> terms = load(staged, All{});
    if (dot) {
      store_wide<T>(tile + k * rows + place * kStep, terms, All{});
      continue;
    }
    accumulate_t<T> numbers[kStep];
    store(numbers, terms, All{});
    for (std::int64_t i = 0; i < count; ++i) tile[(k + i) * rows + place] = numbers[i];
  }
}

template <class T>
void arrange(const FewRowsTask& task) {
  const Product& p = task.product;
  auto* const left = static_cast<accumulate_t<T>*>(task.left);
  __builtin_memset(left, 0, padded_rows(p.rows) * padded_terms(p.terms) * sizeof(*left));
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::int64_t first = row / kTallestTile * kTallestTile;
    const std::int64_t rows = tile_rows(std::min(kTallestTile, p.rows - first));
    const T* const source = static_cast<const T*>(p.a.data) + row * p.a.row_step;
    arrange_row<T>(p, source, row - first, rows, left + first * padded_terms(p.terms));
  }
}

template <class T>
void multiply_columns(const FewRowsTask& task, std::int64_t begin, std::int64_t end) {
  if (is_by_terms(task.product)) {
    dot_columns<T>(task, begin, end);
  } else {
    axpy_columns<T>(task, begin, end);
  }
}

template <class T>
void finish(const FewRowsTask& task, const Block& block, const void* sums) {
  finish_block<T>(task.product, task.activations, block,
                  {static_cast<const accumulate_t<T>*>(sums), kFewCols});
}

template <class T>
constexpr FewRowsKernels kernels_of() {
  return {arrange<T>, multiply_columns<T>, finish<T>};
}

}  // namespace

const FewRowsTable few_rows_kernels = {
    {kernels_of<double>(), kernels_of<float>(), kernels_of<Half>(), kernels_of<BFloat16>()}};

}  // namespace transformer_kernels::cpu::TFK_ISA
