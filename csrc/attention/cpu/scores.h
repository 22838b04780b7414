// SPDX-License-Identifier: MIT
// The steps from the products of q and k to their softmax, one row of a tile at a time. Each
// feature is a short loop over a row in the first-level cache, which runs only where the feature is
// used. For sources that are compiled once per instruction set.
#pragma once

#include "attention/common/far_rows.h"
#include "attention/cpu/kernels.h"
#include "core/cpu/philox_block.h"
#include "core/cpu/row_loop.h"

namespace transformer_kernels::cpu::TFK_ISA {

template <class F>
inline constexpr F kMinusInfinity = -static_cast<F>(__builtin_inff());

inline constexpr double kLog2E = 1.4426950408889634;

inline float natural_log(float value) { return __builtin_logf(value); }
inline double natural_log(double value) { return __builtin_log(value); }
inline float power_of_two(float value) { return __builtin_exp2f(value); }
inline double power_of_two(double value) { return __builtin_exp2(value); }

// Converts an exponent from base e to base 2, rounded once.
template <class F>
F to_base_two(F natural) {
  return static_cast<F>(natural * kLog2E);
}

// ---------------------------------------------------------------------------- rows of any dtype

template <class F, class T>
TFK_FLATTEN void widen_elements(const void* source, std::int64_t count, F* target) {
  const T* const from = static_cast<const T*>(source);
  for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
    store(target + i, load(from + i, lanes), lanes);
  });
}

template <class F, class T>
TFK_FLATTEN void narrow_elements(const F* source, F factor, std::int64_t count, void* target) {
  T* const to = static_cast<T*>(target);
  const auto scale = vec_t<T>::of(factor);
  for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
    store(to + i, load_as<T>(source + i, lanes) * scale, lanes);
  });
}

template <class F>
void widen_row(DType dtype, const void* source, std::int64_t count, F* target) {
  if constexpr (sizeof(F) == sizeof(double)) {
    widen_elements<F, double>(source, count, target);
  } else {
    if (dtype == DType::kFloat32) return widen_elements<F, float>(source, count, target);
    if (dtype == DType::kFloat16) return widen_elements<F, Half>(source, count, target);
    widen_elements<F, BFloat16>(source, count, target);
  }
}

// target = source * factor
template <class F>
void narrow_row(DType dtype, const F* source, F factor, std::int64_t count, void* target) {
  if constexpr (sizeof(F) == sizeof(double)) {
    narrow_elements<F, double>(source, factor, count, target);
  } else {
    if (dtype == DType::kFloat32) return narrow_elements<F, float>(source, factor, count, target);
    if (dtype == DType::kFloat16) return narrow_elements<F, Half>(source, factor, count, target);
    narrow_elements<F, BFloat16>(source, factor, count, target);
  }
}

// Asks for a row that will be read some rows later. The rows of a head lie a whole token apart,
// often a page for every few of them, and processors do not guess that.
inline constexpr std::int64_t kRowsAhead = 8;

TFK_INLINE void prefetch_row(const char* row, std::int64_t bytes) {
  PrefetchRow<char>{row}(0, bytes);
}

// Widens rows of a head into scratch rows, `step` numbers apart, and prefetches the rows that
// follow, up to row `end`. Numbers past `dim` reach only columns of a product that are never read,
// but uninitialised ones may not be finite, so they are set to 0.
template <class F>
void widen_rows(const HeadRows& rows, DType dtype, std::int64_t batch, std::int64_t first,
                std::int64_t head, std::int64_t count, std::int64_t dim, F* target,
                std::int64_t step, std::int64_t end) {
  for (std::int64_t r = 0; r < count; ++r) {
    F* const row = target + r * step;
    const std::int64_t later = std::min(first + r + kRowsAhead, end - 1);
    prefetch_row(rows.address(dtype, batch, later, head), dim * size_of(dtype));
    widen_row(dtype, rows.address(dtype, batch, first + r, head), dim, row);
    for (std::int64_t i = dim; i < step; ++i) row[i] = 0;
  }
}

// ---------------------------------------------------------------------------- loops over a row

// target[i] = function(a[i]), or function(a[i], b[i]).
template <class F, class Function>
TFK_INLINE void map_row(F* target, const F* a, std::int64_t count, Function&& function) {
  for_each_vector<F>(count, [&](std::int64_t i, int, auto lanes) {
    store(target + i, function(load(a + i, lanes)), lanes);
  });
}
template <class F, class Function>
TFK_INLINE void map_row(F* target, const F* a, const F* b, std::int64_t count,
                        Function&& function) {
  for_each_vector<F>(count, [&](std::int64_t i, int, auto lanes) {
    store(target + i, function(load(a + i, lanes), load(b + i, lanes)), lanes);
  });
}

template <class F>
TFK_FLATTEN void fill_row(F* row, F value, std::int64_t count) {
  for_each_vector<F>(
      count, [&](std::int64_t i, int, auto lanes) { store(row + i, Vec<F>::of(value), lanes); });
}
template <class F>
TFK_FLATTEN void scale_row(F* row, F factor, std::int64_t count) {
  map_row(row, row, count, [&](Vec<F> x) { return x * Vec<F>::of(factor); });
}
template <class F>
TFK_FLATTEN void multiply_rows(F* row, const F* factors, std::int64_t count) {
  map_row(row, row, factors, count, [](Vec<F> x, Vec<F> y) { return x * y; });
}
template <class F>
TFK_FLATTEN void add_rows(F* row, const F* terms, std::int64_t count) {
  map_row(row, row, terms, count, [](Vec<F> x, Vec<F> y) { return x + y; });
}
template <class F>
TFK_FLATTEN F largest_of_row(const F* row, std::int64_t count) {
  const Vec<F> lowest = Vec<F>::of(kMinusInfinity<F>);
  auto top = Slots<F>::of(kMinusInfinity<F>);
  for_each_vector<F>(count, [&](std::int64_t i, int slot, auto lanes) {
    top[slot] = max(keep<F>(load(row + i, lanes), lanes, lowest), top[slot]);
  });
  return top.largest();
}
template <class F>
TFK_FLATTEN F dot_of_rows(const F* a, const F* b, std::int64_t count) {
  auto sum = Slots<F>::of(0);
  for_each_vector<F>(count, [&](std::int64_t i, int slot, auto lanes) {
    sum[slot] = fma(load(a + i, lanes), load(b + i, lanes), sum[slot]);
  });
  return sum.sum();
}
template <class F>
TFK_FLATTEN F sum_of_row(const F* row, std::int64_t count) {
  auto sum = Slots<F>::of(0);
  for_each_vector<F>(count, [&](std::int64_t i, int slot, auto lanes) {
    sum[slot] = sum[slot] + load(row + i, lanes);
  });
  return sum.sum();
}

// row = row * scale - top, where the product is rounded as that of the top.
template <class F>
TFK_FLATTEN void subtract_top(F* row, F scale, F top, std::int64_t count) {
  scale_row(row, scale, count);
  map_row(row, row, count, [&](Vec<F> x) { return x - Vec<F>::of(top); });
}

// row = 2^(row * factor - origin); the sum of it.
template <class F>
TFK_FLATTEN F exponentiate_row(F* row, F factor, F origin, std::int64_t count) {
  constexpr int kSlots = 2;  // the constants of exp2 take most of the registers
  const Vec<F> scale = Vec<F>::of(factor);
  const Vec<F> shift = Vec<F>::of(-origin);
  auto sum = Slots<F, kSlots>::of(0);
  for_each_vector<F, kSlots>(count, [&](std::int64_t i, int slot, auto lanes) {
    const Vec<F> e = exp2(fma(load(row + i, lanes), scale, shift));
    store(row + i, e, lanes);
    sum[slot] = sum[slot] + keep<F>(e, lanes, Vec<F>::of(0));
  });
  return sum.sum();
}

// The arguments of exponentiate_row().
template <class F>
struct Powers {
  F factor;
  F origin;
};

// Makes exp(row * scale - top - rest) a power of 2. Of a far row the top is taken off here.
template <class F>
TFK_INLINE Powers<F> powers_of_row(F* row, double scale, F top, F rest, std::int64_t count) {
  // A query that has seen nothing yet: any finite origin makes every power 0.
  if (top == kMinusInfinity<F>) return {1, 0};
  if (!is_far(top)) return {static_cast<F>(scale * kLog2E), to_base_two(top + rest)};
  subtract_top(row, static_cast<F>(scale), top, count);
  return {static_cast<F>(kLog2E), to_base_two(rest)};
}

// ---------------------------------------------------------------------------- the features

// cap * tanh(row / cap); the derivative of that goes to `slope`, where the caller has one.
template <class F, bool kSlope>
TFK_FLATTEN void cap_row(F* row, F cap, F* slope, std::int64_t count) {
  using V = Vec<F>;
  const V limit = V::of(cap);
  const V inverse = V::of(1 / cap);
  for_each_vector<F>(count, [&](std::int64_t i, int, auto lanes) {
    const V t = tanh(load(row + i, lanes) * inverse);
    store(row + i, t * limit, lanes);
    if constexpr (kSlope) store(slope + i, V::of(1) - t * t, lanes);
  });
}

// row -= slope * |distance + 0, 1, 2, ...|
template <class F>
TFK_FLATTEN void add_alibi(F* row, F slope, F distance, std::int64_t count) {
  using V = Vec<F>;
  F lane[V::kLanes];
  for (int i = 0; i < V::kLanes; ++i) lane[i] = static_cast<F>(i);
  const V index = load(lane, All{});
  const V factor = V::of(-slope);
  for_each_vector<F>(count, [&](std::int64_t i, int, auto lanes) {
    const V d = index + V::of(distance + static_cast<F>(i));
    store(row + i, fma(max(d, V::of(0) - d), factor, load(row + i, lanes)), lanes);
  });
}

template <class F>
TFK_FLATTEN void add_number(F* row, F number, std::int64_t count) {
  map_row(row, row, count, [&](Vec<F> x) { return x + Vec<F>::of(number); });
}

template <class F>
TFK_FLATTEN void hide_row(F* row, const std::uint8_t* mask, std::int64_t count) {
  const Vec<F> hidden = Vec<F>::of(kMinusInfinity<F>);
  for_each_vector<F>(count, [&](std::int64_t i, int, auto lanes) {
    store(row + i, select(nonzero<F>(mask + i, lanes), load(row + i, lanes), hidden), lanes);
  });
}

// A row of scores: query `query` of a sequence's head against the `count` keys from `key` on.
struct ScorePlace {
  std::int64_t batch;
  std::int64_t head;
  std::int64_t query;
  std::int64_t key;
  std::int64_t count;
};

template <class F>
void add_bias(const ScoreMap& bias, const ScorePlace& at, F* row, F* scratch) {
  const std::int64_t offset = bias.offset(at.batch, at.head, at.query, at.key);
  const char* const data = static_cast<const char*>(bias.data) + offset * size_of(bias.dtype);
  const std::int64_t numbers = bias.col_stride == 0 ? 1 : at.count;
  widen_row(bias.dtype, data, numbers, scratch);
  if (bias.col_stride == 0) return add_number(row, scratch[0], at.count);
  add_rows(row, scratch, at.count);
}

template <class F>
void hide_masked(const ScoreMap& mask, const ScorePlace& at, F* row) {
  const std::uint8_t* const data = static_cast<const std::uint8_t*>(mask.data) +
                                   mask.offset(at.batch, at.head, at.query, at.key);
  if (mask.col_stride != 0) return hide_row(row, data, at.count);
  if (*data == 0) fill_row(row, kMinusInfinity<F>, at.count);
}

// A scale that is not positive changes which product is the largest.
inline bool plain_scores(const AttentionProblem& p) { return has_plain_scores(p) && p.scale > 0; }

// Products become scores, but for what visible() hides. `slope` gets the derivative of the cap;
// where it is null nobody needs it. `scratch` has room for a row.
template <class F>
void finish_scores(const AttentionProblem& p, const Sequence& s, const ScorePlace& at, F* row,
                   F* slope, F* scratch) {
  scale_row(row, static_cast<F>(p.scale), at.count);
  if (p.softcap != 0) {
    const auto cap = slope == nullptr ? cap_row<F, false> : cap_row<F, true>;
    cap(row, static_cast<F>(p.softcap), slope, at.count);
  }
  if (p.slopes.data != nullptr) {
    const F distance = static_cast<F>(at.key - p.diagonal(s, at.query));
    add_alibi(row, p.slopes.at<F>(at.batch, at.head, 0), distance, at.count);
  }
  if (p.bias.defined()) add_bias(p.bias, at, row, scratch);
  if (p.mask.defined()) hide_masked(p.mask, at, row);
}

// Columns that a query may not see by their place become -inf.
template <class F>
void hide_outside(Range visible, std::int64_t key, std::int64_t width, F* row) {
  const std::int64_t begin = std::clamp<std::int64_t>(visible.begin - key, 0, width);
  const std::int64_t end = std::clamp<std::int64_t>(visible.end - key, begin, width);
  fill_row(row, kMinusInfinity<F>, begin);
  fill_row(row + end, kMinusInfinity<F>, width - end);
}

// Products of a query with the columns of a tile, some of which may lie past the last key, become
// its scores, -inf where it sees no key. They may lack the scale, which is returned: exponentials
// take it in for nothing.
template <class F>
double score_row(const AttentionProblem& p, const Sequence& s, const ScorePlace& at, F* row,
                 F* slope, F* scratch) {
  const bool plain = plain_scores(p);
  if (!plain) {
    ScorePlace keys = at;
    keys.count = std::min(at.count, s.keys - at.key);
    finish_scores(p, s, keys, row, slope, scratch);
  }
  hide_outside(p.visible(s, at.query), at.key, at.count, row);
  return plain ? p.scale : 1.0;
}

// 0 where dropout drops, else 1 over the probability of keeping. `key` is a multiple of 8, and
// factors of whole counters are written.
template <class F>
void dropout_factors(const AttentionProblem& p, std::int64_t row, std::int64_t key,
                     std::int64_t count, F* factors) {
  constexpr std::int64_t kPerCall = 8;
  constexpr std::uint32_t kValues = 65536;
  // Where everything is dropped nothing is kept, and the factor unused.
  const F kept = static_cast<F>(static_cast<double>(kValues) /
                                (p.drop_below < kValues ? kValues - p.drop_below : kValues));
  const std::uint32_t below = p.drop_below;
  const std::int64_t calls_per_row = (p.keys + kPerCall - 1) / kPerCall;
  const std::int64_t calls = (count + kPerCall - 1) / kPerCall;
  const std::int64_t first = row * calls_per_row + key / kPerCall;
  for (std::int64_t call = 0; call < calls; call += kPhiloxCounters) {
    alignas(64) std::uint16_t numbers[kPhiloxNumbers];
    philox_block(p.seed, static_cast<std::uint64_t>(first + call), p.offset, numbers);
    const std::int64_t left = calls - call < kPhiloxCounters ? calls - call : kPhiloxCounters;
    F* const block = factors + call * kPerCall;
    for (std::int64_t n = 0; n < left * kPerCall; ++n) block[n] = numbers[n] < below ? F{0} : kept;
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
