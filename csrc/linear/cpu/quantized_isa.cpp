// SPDX-License-Identifier: MIT
// Products of few rows with quantised weights, and the conversion of such weights to plain
// matrices. Compiled once per instruction set; see core/cpu/isa.h.
#include "linear/cpu/quantized.h"

#include <memory>

#include "core/cpu/simd_integers.h"
#include "linear/cpu/dot_tile.h"
#include "linear/cpu/quantized_pack.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

constexpr int kLanes = Vec<float>::kLanes;
constexpr std::int64_t kPairOfVectors = 2 * kLanes;

// ---- few rows -----------------------------------------------------------------------------------

// A group of a line in 8 bits: two vectors in order.
struct ByteLine {
  using Sum = float;
  using Vector = Two<Vec<float>>;
  static constexpr int kStep = kPairOfVectors;
  static constexpr int kBits = 8;

  const std::int8_t* data;
  Vec<float> scale;

  TFK_INLINE static ByteLine at(const void* row, float scale) {
    return {static_cast<const std::int8_t*>(row), Vec<float>::of(scale)};
  }
  TFK_INLINE Vector load(std::int64_t k, All) const {
    return {load_bytes(data + k, All{}) * scale, load_bytes(data + k + kLanes, All{}) * scale};
  }
  TFK_INLINE void fetch(std::int64_t k, std::int64_t bytes) const { prefetch(data + k + bytes); }
  TFK_INLINE static Vector row(const float* p) {
    return {TFK_ISA::load(p, All{}), TFK_ISA::load(p + kLanes, All{})};
  }
  // Where a term of a step stands in a row of the left operand.
  static constexpr std::int64_t place(std::int64_t term) { return term; }
};

// A line of 4-bit numbers: a vector of the terms at even places, and one of those at odd places.
struct NibbleLine {
  using Sum = float;
  using Vector = Two<Vec<float>>;
  static constexpr int kStep = kPairOfVectors;
  static constexpr int kBits = 4;

  const std::uint8_t* data;
  Nibbles numbers;

  TFK_INLINE static NibbleLine at(const void* row, float scale) {
    return {static_cast<const std::uint8_t*>(row), Nibbles::of(scale)};
  }
  TFK_INLINE Vector load(std::int64_t k, All) const {
    const EvenOdd both = numbers.load(data + k / 2);
    return {both.even, both.odd};
  }
  TFK_INLINE void fetch(std::int64_t k, std::int64_t bytes) const {
    prefetch(data + k / 2 + bytes);
  }
  TFK_INLINE static Vector row(const float* p) { return ByteLine::row(p); }
  static constexpr std::int64_t place(std::int64_t term) { return term / 2 + term % 2 * kLanes; }
};

// Lines next to each other, with their scales, `groups` apart.
struct ScaledLines {
  const std::byte* packed;
  std::int64_t packed_stride;
  const float* scales;
  std::int64_t groups;
  std::int64_t group;
  std::int64_t count;
};

template <class Line, int kRows>
TFK_FLATTEN void dot_tile(const ScaledLines& w, const float* x, float* sums) {
  constexpr int kCount = kLines<kRows>;
  DotTile<Line, kCount, kRows> tile(x);
  const Ahead ahead = Ahead::of<Line>(w.groups * w.group, kCount * w.packed_stride);
  for (std::int64_t g = 0; g < w.groups; ++g) {
    Line lines[kCount];
    for (int i = 0; i < kCount; ++i) {
      const std::int64_t line = std::min<std::int64_t>(i, w.count - 1);
      lines[i] = Line::at(w.packed + line * w.packed_stride, w.scales[line * w.groups + g]);
    }
    tile.add_steps(lines, g * w.group, (g + 1) * w.group, ahead);
  }
  tile.store_to(sums, kFewCols, w.count);
}

template <class Line>
void multiply_columns(const QuantizedTask& task, std::int64_t begin, std::int64_t end) {
  const Product& p = task.few.product;
  const QuantizedMatrix& w = task.weight;
  const std::int64_t groups = p.terms / w.group;
  const std::unique_ptr<float[]> scales(new float[kFewCols * groups]);
  alignas(64) float sums[kFewRows * kFewCols];
  for (std::int64_t first = begin * kFewCols; first < end * kFewCols; first += kFewCols) {
    const std::int64_t cols = std::min(kFewCols, p.cols - first);
    for (std::int64_t i = 0; i < cols; ++i) {
      load_scales(w, first + i, groups, scales.get() + i * groups);
    }
    const auto* const packed = static_cast<const std::byte*>(w.packed) + first * w.packed_stride;
    for_each_dot_tile(p.rows, cols,
                      [&]<int kRows>(std::int64_t row, std::int64_t col, std::int64_t some) {
                        const ScaledLines lines{packed + col * w.packed_stride,
                                                w.packed_stride,
                                                scales.get() + col * groups,
                                                groups,
                                                w.group,
                                                some};
                        const float* const x =
                            static_cast<const float*>(task.few.left) + row * padded_terms(p.terms);
                        dot_tile<Line, kRows>(lines, x, sums + row * kFewCols + col);
                      });
    task.kernels.finish(task.few, {0, first, p.rows, cols}, sums);
  }
}

template <class T>
TFK_FLATTEN void arrange(const QuantizedTask& task) {
  const Product& p = task.few.product;
  const auto place = task.weight.bits == 4 ? NibbleLine::place : ByteLine::place;
  auto* const left = static_cast<float*>(task.few.left);
  __builtin_memset(left, 0, padded_rows(p.rows) * padded_terms(p.terms) * sizeof(float));
  const std::unique_ptr<float[]> wide(new float[p.terms]);
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::int64_t first = row / kTallestTile * kTallestTile;
    const std::int64_t rows = tile_rows(std::min(kTallestTile, p.rows - first));
    widen_row<T>(static_cast<const T*>(p.a.data) + row * p.a.row_step, p.terms, wide.get());
    float* target = left + first * padded_terms(p.terms) + (row - first) * kPairOfVectors;
    for (std::int64_t k = 0; k < p.terms; k += kPairOfVectors) {
      for (std::int64_t i = 0; i < kPairOfVectors; ++i) target[place(i)] = wide[k + i];
      target += rows * kPairOfVectors;
    }
  }
}

// ---- a plain matrix -----------------------------------------------------------------------------

TFK_INLINE void unpack_bytes(const std::int8_t* source, std::int64_t count, float* target) {
  for_each_vector<float>(count, [&](std::int64_t i, int, auto lanes) {
    store(target + i, load_bytes(source + i, lanes), lanes);
  });
}

// `target` has room for whole pairs of vectors.
TFK_INLINE void unpack_nibbles(const std::uint8_t* source, std::int64_t count, float* target) {
  const Nibbles numbers = Nibbles::of(1);
  const auto unpack = [&](const std::uint8_t* from, std::int64_t i) {
    const EvenOdd both = numbers.load(from);
    store(target + i, lower_of(both), All{});
    store(target + i + kLanes, upper_of(both), All{});
  };
  std::int64_t i = 0;
  for (; i + kPairOfVectors <= count; i += kPairOfVectors) unpack(source + i / 2, i);
  if (i == count) return;
  std::uint8_t rest[kLanes] = {};
  __builtin_memcpy(rest, source + i / 2, (count - i + 1) / 2);
  unpack(rest, i);
}

// Terms [first, first + count) of a line, of which `scales` are the groups.
TFK_INLINE void scale_terms(std::int64_t first, std::int64_t count, std::int64_t group,
                            const float* scales, float* row) {
  for (std::int64_t k = 0; k < count;) {
    const std::int64_t g = (first + k) / group;
    const std::int64_t end = std::min((g + 1) * group - first, count);
    const Vec<float> scale = Vec<float>::of(scales[g]);
    for_each_vector<float>(end - k, [&](std::int64_t i, int, auto lanes) {
      store(row + k + i, load(row + k + i, lanes) * scale, lanes);
    });
    k = end;
  }
}

template <class T>
TFK_INLINE void round_row(const float* row, std::int64_t count, T* target) {
  if constexpr (sizeof(T) == sizeof(double)) {
    for (std::int64_t i = 0; i < count; ++i) target[i] = row[i];
  } else {
    for_each_vector<T>(count, [&](std::int64_t i, int, auto lanes) {
      store(target + i, load_as<T>(row + i, lanes), lanes);
    });
  }
}

template <class T>
TFK_FLATTEN void dequantize(const DequantizeTask& task, std::int64_t begin, std::int64_t end) {
  const QuantizedMatrix& w = task.weight;
  const std::int64_t groups = divide_up(task.first_term + task.terms, w.group);
  const std::unique_ptr<float[]> scales(new float[groups]);
  const std::unique_ptr<float[]> row(new float[rounded_up(task.terms, kPairOfVectors)]);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t line = task.first_line + i;
    const auto* const packed = static_cast<const std::byte*>(w.packed) + line * w.packed_stride +
                               task.first_term * w.bits / 8;
    if (w.bits == 4) {
      unpack_nibbles(reinterpret_cast<const std::uint8_t*>(packed), task.terms, row.get());
    } else {
      unpack_bytes(reinterpret_cast<const std::int8_t*>(packed), task.terms, row.get());
    }
    load_scales(w, line, groups, scales.get());
    scale_terms(task.first_term, task.terms, w.group, scales.get(), row.get());
    round_row(row.get(), task.terms, static_cast<T*>(task.target) + i * task.terms);
  }
}

#if TFK_ISA_LEVEL >= 3
constexpr PackQuantized pairs_of_terms() {
  return {pack_terms<BFloat16Pair, 8>, pack_terms<BFloat16Pair, 4>};
}
constexpr PackQuantized pairs_of_lines() {
  return {pack_lines_in_pairs<8>, pack_lines_in_pairs<4>};
}
#else
constexpr PackQuantized pairs_of_terms() { return {}; }
constexpr PackQuantized pairs_of_lines() { return {}; }
#endif

}  // namespace

const QuantizedKernels quantized_kernels = {
    kPairOfVectors,
    {nullptr, arrange<float>, arrange<Half>, arrange<BFloat16>},
    {multiply_columns<ByteLine>, multiply_columns<NibbleLine>},
    {dequantize<double>, dequantize<float>, dequantize<Half>, dequantize<BFloat16>},
    {pack_terms<float, 8>, pack_terms<float, 4>},
    pairs_of_terms(),
    pairs_of_lines()};

}  // namespace transformer_kernels::cpu::TFK_ISA
