// SPDX-License-Identifier: MIT
// Quantised weights as right operands of products, in the order in which tiles read them. Numbers
// are dequantised on the way there, in one pass. For sources that are compiled once per instruction
// set.
#pragma once

#include <algorithm>
#include <memory>

#include "core/cpu/row_loop.h"
#include "core/cpu/simd_integers.h"
#include "linear/cpu/quantized.h"
#if TFK_ISA_LEVEL >= 3
#include "core/cpu/bfloat16_pair.h"
#endif

namespace transformer_kernels::cpu::TFK_ISA {

// Numbers [k, k + 2 vectors) of a line, which belong to one group.
template <int kBits>
TFK_INLINE Two<Vec<float>> load_numbers(const std::byte* line, std::int64_t k, float scale) {
  const Vec<float> factor = Vec<float>::of(scale);
  if constexpr (kBits == 8) {
    const auto* const p = reinterpret_cast<const std::int8_t*>(line) + k;
    return {load_bytes(p, All{}) * factor, load_bytes(p + Vec<float>::kLanes, All{}) * factor};
  } else {
    const auto* const p = reinterpret_cast<const std::uint8_t*>(line) + k / 2;
    const EvenOdd both = Nibbles::of(1).load(p);
    return {lower_of(both) * factor, upper_of(both) * factor};
  }
}

// One line of numbers and its scales.
template <int kBits>
struct QuantizedLine {
  const std::byte* numbers;
  const float* scales;
  std::int64_t group;

  TFK_INLINE Two<Vec<float>> load(std::int64_t k) const {
    return load_numbers<kBits>(numbers, k, scales[k / group]);
  }
};

template <class S>
TFK_INLINE void widen_row(const void* source, std::int64_t count, float* target) {
  for_each_vector<S>(count, [&](std::int64_t i, int, auto lanes) {
    store(target + i, load(static_cast<const S*>(source) + i, lanes), lanes);
  });
}

// The scales of a line, as floats.
TFK_FLATTEN inline void load_scales(const QuantizedMatrix& w, std::int64_t line,
                                    std::int64_t groups, float* target) {
  const auto* const row =
      static_cast<const std::byte*>(w.scales) + line * w.scales_stride * size_of(w.scales_dtype);
  switch (w.scales_dtype) {
    case DType::kFloat16: return widen_row<Half>(row, groups, target);
    case DType::kBFloat16: return widen_row<BFloat16>(row, groups, target);
    default: return widen_row<float>(row, groups, target);
  }
}

TFK_INLINE const std::byte* line_of(const QuantizedMatrix& w, std::int64_t line) {
  return static_cast<const std::byte*>(w.packed) + line * w.packed_stride;
}

// Terms of the operand are lines of the weight, and its columns numbers of them: elements
// [begin, end), of one line each, or of a pair of lines.
template <class F, int kBits>
TFK_FLATTEN void pack_terms(const PackQuantizedTask& task, std::int64_t begin, std::int64_t end) {
  constexpr int kLanes = Vec<float>::kLanes;
  constexpr int kLines = __is_same(F, float) ? 1 : 2;
  const QuantizedMatrix& w = task.weight;
  const std::int64_t groups = divide_up(task.first + task.cols, w.group);
  const std::unique_ptr<float[]> scales(new float[kLines * groups]);
  const std::unique_ptr<float[]> zeros(new float[groups]());
  for (std::int64_t element = begin; element < end; ++element) {
    QuantizedLine<kBits> lines[kLines];
    for (int i = 0; i < kLines; ++i) {
      // A line past the last one is another one times 0.
      const std::int64_t line = element * kLines + i;
      const bool exists = line < task.terms;
      float* const own = scales.get() + i * groups;
      if (exists) load_scales(w, line, groups, own);
      lines[i] = {line_of(w, exists ? line : 0), exists ? own : zeros.get(), w.group};
    }
    F* const target = static_cast<F*>(task.target) + element * task.width;
    for (std::int64_t c = 0; c < task.cols; c += 2 * kLanes) {
      const auto place = [&](std::int64_t col) {
        return target + col / task.width * task.width * task.elements + col % task.width;
      };
      const auto first = lines[0].load(task.first + c);
      if constexpr (kLines == 1) {
        store(place(c), first.a, All{});
        store(place(c + kLanes), first.b, All{});
      } else {
        const auto second = lines[1].load(task.first + c);
        store(place(c), paired(first.a, second.a), All{});
        store(place(c + kLanes), paired(first.b, second.b), All{});
      }
    }
  }
}

#if TFK_ISA_LEVEL >= 3
// Columns of the operand are lines of the weight, and its terms numbers of them: squares
// [begin, end) of 16 lines.
template <int kBits>
TFK_FLATTEN void pack_lines_in_pairs(const PackQuantizedTask& task, std::int64_t begin,
                                     std::int64_t end) {
  constexpr std::int64_t kSide = VecP::kLanes;
  const QuantizedMatrix& w = task.weight;
  const std::int64_t groups = task.terms / w.group;
  const std::unique_ptr<float[]> scales(new float[kSide * groups]);
  for (std::int64_t square = begin; square < end; ++square) {
    const std::int64_t col = square * kSide;
    QuantizedLine<kBits> lines[kSide];
    for (std::int64_t i = 0; i < kSide; ++i) {
      // Columns past the last one are not looked at.
      const std::int64_t line = task.first + std::min(col + i, task.cols - 1);
      load_scales(w, line, groups, scales.get() + i * groups);
      lines[i] = {line_of(w, line), scales.get() + i * groups, w.group};
    }
    auto* target = static_cast<BFloat16Pair*>(task.target) +
                   col / task.width * task.width * task.elements + col % task.width;
    for (std::int64_t k = 0; k < task.terms; k += 2 * kSide) {
      VecP pairs[kSide];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kSide; ++i) {
        const auto numbers = lines[i].load(k);
        pairs[i] = rounded(numbers.a, numbers.b);
      }
      transpose(pairs);
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kSide; ++i) store(target + i * task.width, pairs[i], All{});
      target += kSide * task.width;
    }
  }
}
#endif

}  // namespace transformer_kernels::cpu::TFK_ISA
