// SPDX-License-Identifier: MIT
// Stores each group's sums in a matrix of its own (grouped_terms_sm90a.cu), of T or of float32, or
// adds them to it, from the registers in which they are. A group without terms has sums of 0.
#pragma once

#include "linear/sm90/direct_writer.cuh"

namespace transformer_kernels::cuda {

// Rows of a matrix are apart by an even number of elements, and begin at a multiple of two.
struct GroupGradients {
  void* data;
  std::int64_t group_step;
  std::int64_t row_step;
  bool is_wide;  // float32
  bool accumulates;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Nobody else adds there: the sum has one rounding, and the thread does not wait for it.
__device__ __forceinline__ void global_reduce_add(float* destination, float2 v) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1,%2};" ::"l"(destination), "f"(v.x),
               "f"(v.y)
               : "memory");
}

#endif  // sm_90

template <class T, class Shape>
class GradientWriter {
 public:
  using Parameters = DirectResults<GroupGradients>;
  struct Storage {};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

  static __device__ __forceinline__ void init(Storage&) {}

  template <class Tiles>
  static __device__ __forceinline__ void load(const Parameters&, const Tiles&, Storage&) {}

  __device__ __forceinline__ GradientWriter(const Parameters& p, Storage&, int,
                                            AccumulatorThread own)
      : p_(p),
        own_(own) {}

  __device__ __forceinline__ void touch(int) const {}

  __device__ __forceinline__ void write(const typename Shape::Sums& sums, const GroupedUnit& unit,
                                        int) const {
    const int col = unit.place.col * Shape::kCols + own_.col(0);
#pragma unroll
    for (int band = 0; band < Shape::kBands; ++band) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = unit.place.row * Shape::kRows + band * 64 + own_.row(half);
        if (row >= p_.extent.rows) continue;
        const std::int64_t at =
            unit.group * p_.epilogue.group_step + row * p_.epilogue.row_step + col;
        const auto two = [&](int i) {
          const float* const own = sums[band] + own_.sum(half, i);
          return unit.blocks > 0 ? float2{own[0], own[1]} : float2{};
        };
        if (p_.epilogue.is_wide) {
          write_wide(static_cast<float*>(p_.epilogue.data) + at, col, two);
        } else {
          write_narrow(static_cast<T*>(p_.epilogue.data) + at, col, two);
        }
      }
    }
  }

  __device__ __forceinline__ void finish() const {}

 private:
  static constexpr int kEights = Shape::kCols / 8;

  template <class Two>
  __device__ __forceinline__ void write_wide(float* to, int col, const Two& two) const {
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      if (col + 8 * i >= p_.extent.cols) return;
      if (p_.epilogue.accumulates) {
        global_reduce_add(to + 8 * i, two(i));
      } else {
        *reinterpret_cast<float2*>(to + 8 * i) = two(i);
      }
    }
  }

  // Old numbers come for several sums at once.
  template <class Two>
  __device__ __forceinline__ void write_narrow(T* to, int col, const Two& two) const {
    constexpr int kAtOnce = 8;
    static_assert(kEights % kAtOnce == 0);
#pragma unroll
    for (int first = 0; first < kEights; first += kAtOnce) {
      std::uint32_t words[kAtOnce] = {};
      const auto has = [&](int i) { return col + 8 * (first + i) < p_.extent.cols; };
      const auto word = [&](int i) {
        return reinterpret_cast<std::uint32_t*>(to + 8 * (first + i));
      };
      if (p_.epilogue.accumulates) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (has(i)) words[i] = *word(i);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float sum[2];
        widen_word<T>(words[i], sum);
        const float2 own = two(first + i);
        sum[0] += own.x;
        sum[1] += own.y;
        if (has(i)) *word(i) = narrow_word<T>(sum);
      }
    }
  }

  const Parameters& p_;
  AccumulatorThread own_;

#endif  // sm_90a
};

template <class T, class Shape>
struct WriterOf<T, Shape, GroupGradients> {
  using Type = GradientWriter<T, Shape>;
};

}  // namespace transformer_kernels::cuda
