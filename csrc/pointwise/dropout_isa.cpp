// SPDX-License-Identifier: MIT
// Dropout. Compiled once per instruction set; see core/cpu/isa.h.
#include "pointwise/dropout_isa.h"

#include "core/cpu/philox_block.h"
#include "pointwise/kernels_isa.h"
#include "pointwise/part_isa.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// The factor of a dropped element. Its sign alone counts: kept() gives 0 without a look at the
// product, which may be NaN or infinite.
inline constexpr int kDropped = -1;

// The factors of neighbouring elements, in runs. A run may begin amid the numbers of a counter; the
// block that it ends in is then drawn with it, and kept for the next.
template <class T, class A = accumulate_t<T>>
class Factors {
 public:
  // Factors of the elements from number `first` on.
  Factors(const DropoutDraw& draw, std::int64_t first)
      : draw_(draw),
        scale_(static_cast<A>(draw.scale)),
        counter_(first / 8),
        skip_(first % 8) {}

  // Calls body(element, count, factors) for each run of `count` elements, counted from 0. A run
  // begins at a multiple of kPhiloxNumbers, and so of a group of vectors.
  template <class Body>
  TFK_INLINE void for_each_run(std::int64_t count, Body&& body) {
    if (skip_ != 0) draw_into(factors_);
    for (std::int64_t begin = 0; begin < count; begin += kPhiloxNumbers) {
      draw_into(skip_ == 0 ? factors_ : factors_ + kPhiloxNumbers);
      const std::int64_t left = count - begin;
      body(begin, left < kPhiloxNumbers ? left : kPhiloxNumbers, factors_ + skip_);
      if (skip_ != 0) __builtin_memcpy(factors_, factors_ + kPhiloxNumbers, sizeof(factors_) / 2);
    }
  }

 private:
  // Draws the factors of the next block of counters.
  TFK_INLINE void draw_into(A* factors) {
    alignas(64) std::uint16_t numbers[kPhiloxNumbers];
    philox_block(draw_.seed, static_cast<std::uint64_t>(counter_), draw_.offset, numbers);
    counter_ += kPhiloxCounters;
    for (int n = 0; n < kPhiloxNumbers; ++n) {
      factors[n] = numbers[n] < draw_.below ? static_cast<A>(kDropped) : scale_;
    }
  }

  const DropoutDraw draw_;
  const A scale_;
  std::int64_t counter_;
  const std::int64_t skip_;
  alignas(64) A factors_[2 * kPhiloxNumbers];
};

// value * factor, or 0 where it is dropped.
template <class V>
TFK_INLINE V kept(V value, V factor) {
  return select(is_negative(factor), V::of(0), value * factor);
}

// Part of a row. All pointers are to its first element; all but x and y may be null.
template <class T>
struct Part {
  const T* x;
  const accumulate_t<T>* bias;
  const T* residual;
  T* y;
  accumulate_t<T>* sums;  // over rows, to which this part adds what dropout leaves
  bool stream;
};

// drop(x + bias) of elements [begin, begin + count), and the residual; `drop` takes the place in
// that run as well.
template <class T, class Drop>
TFK_INLINE void drop_run(const Part<T>& part, std::int64_t begin, std::int64_t count, Drop&& drop) {
  for_each_group<T>(count, [&](std::int64_t i, auto lanes) {
    auto x = load(part.x + begin + i, lanes);
    if (part.bias != nullptr) x = x + load_wide<T>(part.bias + begin + i, lanes);
    auto y = drop(x, i, lanes);
    if (part.sums != nullptr) add_to<T>(part.sums + begin + i, y, lanes);
    if (part.residual != nullptr) y = y + load(part.residual + begin + i, lanes);
    put(part.y + begin + i, y, lanes, part.stream);
  });
}

template <class T>
TFK_FLATTEN void drop_part(const Part<T>& arguments, const DropoutDraw& draw, std::int64_t first,
                           std::int64_t cols) {
  const Part<T> part = arguments;  // no store can change it
  if (draw.keeps_all()) {
    return drop_run(part, 0, cols, [](auto x, std::int64_t, auto) { return x; });
  }
  if (draw.keeps_none()) {
    return drop_run(part, 0, cols, [](auto x, std::int64_t, auto) { return x.of(0); });
  }
  Factors<T>(draw, first)
      .for_each_run(cols,
                    [&](std::int64_t begin, std::int64_t count, const accumulate_t<T>* factors) {
                      drop_run(part, begin, count, [&](auto x, std::int64_t i, auto lanes) {
                        return kept(x, load_as<T>(factors + i, lanes));
                      });
                    });
}

template <class T>
void drop_tiles(const DropoutTask& task, std::int64_t begin, std::int64_t end) {
  const DropoutForwardProblem& p = task.problem;
  const bool stream = streams<T>(task.stream, p.y, p.x, p.residual);
  const std::int64_t tiles = tiles_of_row(p.cols);
  for (std::int64_t tile = begin; tile < end; ++tile) {
    const std::int64_t row = tile / tiles;
    const std::int64_t col = tile % tiles * kTileCols;
    const Part<T> part{
        .x = element_of<const T>(p.x, row, col),
        .bias = column_of<T>(task.bias, col),
        .residual = element_if<const T>(p.residual.data != nullptr, p.residual, row, col),
        .y = element_of<T>(p.y, row, col),
        .sums = nullptr,
        .stream = stream};
    drop_part(part, p.draw, row * p.cols + col,
              p.cols - col < kTileCols ? p.cols - col : kTileCols);
  }
  stream_fence();
}

template <class T>
void backward_chunks(const DropoutBackwardTask& task, std::int64_t begin, std::int64_t end) {
  const DropoutBackwardProblem& p = task.problem;
  const bool stream = streams<T>(task.stream, p.dx, p.dy, p.dy);
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const std::int64_t first = chunk * task.rows_per_chunk;
    const std::int64_t last =
        first + task.rows_per_chunk < p.rows ? first + task.rows_per_chunk : p.rows;
    auto* const sums = static_cast<accumulate_t<T>*>(task.partials) + chunk * 2 * task.wide_cols;
    __builtin_memset(sums, 0, task.wide_cols * sizeof(*sums));
    for (std::int64_t row = first; row < last; ++row) {
      const Part<T> part{.x = row_of<const T>(p.dy, row),
                         .bias = nullptr,
                         .residual = nullptr,
                         .y = row_of<T>(p.dx, row),
                         .sums = sums,
                         .stream = stream};
      drop_part(part, p.draw, row * p.cols, p.cols);
    }
  }
  stream_fence();
}

}  // namespace

const DropoutKernels dropout_kernels = {
    {drop_tiles<double>, drop_tiles<float>, drop_tiles<Half>, drop_tiles<BFloat16>},
    {backward_chunks<double>, backward_chunks<float>, backward_chunks<Half>,
     backward_chunks<BFloat16>}};

}  // namespace transformer_kernels::cpu::TFK_ISA
