// SPDX-License-Identifier: MIT
// Copies of GEMM operands in the order in which tiles read them. For sources that are compiled once
// per instruction set.
#pragma once

#include <algorithm>

#include "core/cpu/row_loop.h"
#include "linear/cpu/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {

// Part `part` of the sums.
struct Part {
  std::int64_t first;
  std::int64_t terms;
};
TFK_INLINE Part part_of(std::int64_t terms, std::int64_t part, std::int64_t most) {
  const std::int64_t first = part * most;
  return {first, std::min(most, terms - first)};
}

// Whether lines of the source lie together, and its terms do not.
constexpr bool lies_by_terms(const Matrix& source) {
  return source.row_step == 1 && source.col_step != 1;
}

// Calls run(panel, count, part) for the parts [begin, end) of a PackTask. Panels that lie next to
// each other are copied together where lines of the source are: its rows of memory are then read in
// long pieces.
template <class Run>
TFK_INLINE void for_each_run(const PackTask& task, std::int64_t begin, std::int64_t end,
                             Run&& run) {
  const std::int64_t panels = divide_up(task.lines, task.width);
  const std::int64_t most = lies_by_terms(task.source) ? 16 : 1;
  for (std::int64_t block = begin; block < end;) {
    const std::int64_t panel = block % panels;
    const std::int64_t count = std::min({most, end - block, panels - panel});
    run(panel, count, block / panels);
    block += count;
  }
}

// `count` elements that lie `step` apart, and zeros up to `width`.
template <class T>
TFK_INLINE void copy_line(const T* source, std::int64_t step, std::int64_t count,
                          accumulate_t<T>* target, std::int64_t width) {
  const auto copy = [&](const T* from, std::int64_t begin, std::int64_t some) {
    for_each_vector<T>(some, [&](std::int64_t i, int, auto lanes) {
      store(target + begin + i, load(from + i, lanes), lanes);
    });
  };
  if (step == 1) {
    copy(source, 0, count);
  } else {
    constexpr std::int64_t kStaged = 64;
    T staged[kStaged];
    for (std::int64_t begin = 0; begin < count; begin += kStaged) {
      const std::int64_t some = std::min(kStaged, count - begin);
      for (std::int64_t i = 0; i < some; ++i) staged[i] = source[(begin + i) * step];
      copy(staged, begin, some);
    }
  }
  if (count < width) __builtin_memset(target + count, 0, (width - count) * sizeof(*target));
}

// A vector's lanes of lines become columns of a panel.
template <class T, class F = accumulate_t<T>>
TFK_INLINE void transpose_lines(const T* lines, std::int64_t line_step, std::int64_t terms,
                                F* target, std::int64_t target_step) {
  constexpr int kLanes = Vec<F>::kLanes;
  const auto square_at = [&](std::int64_t k, std::int64_t count, auto lanes) {
    Vec<F> square[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) square[i] = load(lines + i * line_step + k, lanes);
    transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i < count) store(target + (k + i) * target_step, square[i], All{});
    }
  };
  std::int64_t k = 0;
  for (; k + kLanes <= terms; k += kLanes) square_at(k, kLanes, All{});
  if (k < terms) square_at(k, terms - k, First{terms - k});
}

// Packs a panel whose lines have contiguous elements, as many lines at a time as a vector has
// lanes. Lines that a vector load cannot read are copied first.
template <class T>
TFK_INLINE void pack_lines(const PackTask& task, const T* source, std::int64_t lines, Part part,
                           accumulate_t<T>* target) {
  using F = accumulate_t<T>;
  constexpr int kLanes = Vec<F>::kLanes;
  alignas(64) F copies[kLanes * kBlock.terms];
  for (std::int64_t line = 0; line < task.width; line += kLanes) {
    const T* const first = source + line * task.source.row_step;
    if constexpr (InOrder<T>) {
      if (task.source.col_step == 1 && line + kLanes <= lines) {
        transpose_lines(first, task.source.row_step, part.terms, target + line, task.width);
        continue;
      }
    }
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const std::int64_t count = line + i < lines ? part.terms : 0;
      copy_line(first + i * task.source.row_step, task.source.col_step, count,
                copies + i * kBlock.terms, part.terms);
    }
    transpose_lines<F>(copies, kBlock.terms, part.terms, target + line, task.width);
  }
}

// Packs some neighbouring panels whose lines have strided elements but lie side by side: one pass
// over the rows of memory writes all the panels.
template <class T>
TFK_INLINE void pack_together(const PackTask& task, const T* source, std::int64_t lines, Part part,
                              accumulate_t<T>* target) {
  const std::int64_t step = task.width * task.terms;
  for (std::int64_t k = 0; k < part.terms; ++k) {
    const T* const row = source + k * task.source.col_step;
    accumulate_t<T>* panel = target + k * task.width;
    for (std::int64_t line = 0; line < lines; line += task.width) {
      copy_line(row + line, 1, std::min(task.width, lines - line), panel, task.width);
      panel += step;
    }
  }
}

template <class T>
TFK_FLATTEN void pack(const PackTask& task, std::int64_t begin, std::int64_t end) {
  const Matrix& m = task.source;
  for_each_run(task, begin, end, [&](std::int64_t panel, std::int64_t count, std::int64_t index) {
    const std::int64_t line = panel * task.width;
    const std::int64_t lines = std::min(count * task.width, task.lines - line);
    const Part part = part_of(task.terms, index, kBlock.terms);
    const T* const source =
        static_cast<const T*>(m.data) + line * m.row_step + part.first * m.col_step;
    auto* const target =
        static_cast<accumulate_t<T>*>(task.target) + line * task.terms + part.first * task.width;
    if (lies_by_terms(m)) {
      pack_together(task, source, lines, part, target);
    } else {
      pack_lines(task, source, lines, part, target);
    }
  });
}

}  // namespace transformer_kernels::cpu::TFK_ISA
