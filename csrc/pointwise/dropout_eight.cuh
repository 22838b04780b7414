// SPDX-License-Identifier: MIT
// The eight elements of a row that a thread of dropout's kernels owns, and draws eight random
// numbers for. They are kParts packs of kSize:
//
//   16-bit types    one pack of 16 bytes
//   float32         two packs of 16 bytes, half a row apart, so that a warp's accesses are whole
//                   lines; neighbouring threads draw for each other
//   not aligned     eight neighbouring elements one by one
#pragma once

#include <type_traits>

#include "core/cuda/pack.cuh"
#include "pointwise/dropout_numbers.cuh"
#include "pointwise/pack.cuh"

namespace transformer_kernels::cuda {

template <class T, bool kPacks>
struct DropoutEight {
  static constexpr int kParts = kPacks ? kDropoutNumbers * static_cast<int>(sizeof(T)) / 16 : 1;
  static constexpr int kSize = kDropoutNumbers / kParts;
  using A = accumulate_t<T>;
  using Values = A[kParts][kSize];

  // Elements between the parts: an even number of packs.
  static constexpr std::int64_t distance(std::int64_t cols) {
    constexpr std::int64_t kPair = 2 * kSize;
    return kParts == 1 ? 0 : (cols + 2 * kPair - 1) / (2 * kPair) * kPair;
  }

  const std::int64_t cols;
  const std::int64_t col;  // of the first part

  // A thread beyond the last first part has nothing, and neither has the one that it draws for.
  __device__ __forceinline__ bool has_columns() const {
    return col < (kParts == 1 ? cols : distance(cols));
  }

  __device__ __forceinline__ std::int64_t col_of(int part) const {
    return col + part * distance(cols);
  }
  __device__ __forceinline__ std::int64_t count_of(int part) const { return cols - col_of(part); }

  // The elements as they are stored.
  struct Raw {
    std::conditional_t<kPacks, uint4, T> piece[kPacks ? kParts : kSize];
  };

  // `row` is where a row of the matrix begins.
  __device__ __forceinline__ void fetch(const T* row, Raw& raw) const {
    if constexpr (kPacks) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        raw.piece[part] = load_pack<T, kSize>(row + col_of(part), count_of(part));
      }
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) raw.piece[k] = k < count_of(0) ? row[col + k] : T{};
    }
  }

  __device__ __forceinline__ static void unpack(const Raw& raw, Values& value) {
    if constexpr (kPacks) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        Pack<T, kSize>::unpack(raw.piece[part], value[part]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) value[0][k] = widen(raw.piece[k]);
    }
  }

  __device__ __forceinline__ void load(const T* row, Values& value) const {
    Raw raw;
    fetch(row, raw);
    unpack(raw, value);
  }

  __device__ __forceinline__ void store(T* row, const Values& value) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      T* const pointer = row + col_of(part);
      const std::int64_t count = count_of(part);
      if constexpr (kPacks) {
        store_pack(pointer, value[part], count);
      } else {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          if (k < count) pointer[k] = narrow<T>(value[part][k]);
        }
      }
    }
  }

  // An absent bias is -0, which changes nothing that it is added to.
  __device__ __forceinline__ void load_bias(const void* bias, bool is_wide, Values& value) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const std::int64_t first = col_of(part);
      const std::int64_t count = count_of(part);
      if constexpr (kPacks) {
        cuda::load_bias<T>(bias, is_wide, first, count, value[part]);
      } else {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          A one[1];
          cuda::load_bias<T>(k < count ? bias : nullptr, is_wide, first + k, 1, one);
          value[part][k] = one[0];
        }
      }
    }
  }

  __device__ __forceinline__ static void add(Values& sum, const Values& term) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) sum[part][k] += term[part][k];
    }
  }

  // The numbers of a row whose first element is element `row_begin`. None are needed where all
  // elements stay, or none does.
  __device__ __forceinline__ uint4 numbers(const DropoutDraw& draw, std::int64_t row_begin) const {
    if (draw.keeps_all() || draw.keeps_none()) return make_uint4(0, 0, 0, 0);
    const DropoutNumbers numbers(draw);
    const std::int64_t first = row_begin + col;
    if constexpr (kParts == 2) {
      const bool odd = (col & kSize) != 0;
      return numbers.of_pair(odd ? first - kSize : first, distance(cols), odd);
    } else {
      return kPacks ? numbers.aligned(first) : numbers.any(first);
    }
  }

  __device__ __forceinline__ static void drop(const uint4& numbers, const DropoutDraw& draw,
                                              Values& value) {
    const auto scale = static_cast<A>(draw.scale);
    cuda::drop<0>(numbers, draw.below, scale, value[0]);
    if constexpr (kParts == 2) cuda::drop<kSize>(numbers, draw.below, scale, value[1]);
  }
};

}  // namespace transformer_kernels::cuda
