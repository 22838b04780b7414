// SPDX-License-Identifier: MIT
// A CTA's part of a row of logits, as floats in memory of its own: shared memory where it fits. It
// is read from the row once.
#pragma once

#include "core/cuda/pack.cuh"
#include "decode/sampling/weights.cuh"

namespace transformer_kernels::cuda::sampling {

inline constexpr std::uint32_t kNanKey = 0xffffffff;

__device__ __forceinline__ float larger_or_nan(float a, float b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
#else
  return a != a || a > b ? a : b;
#endif
}

// A number with its place: of entries of equal numbers, the larger one has the first place.
__device__ __forceinline__ std::uint64_t entry_of(std::uint32_t key, int place) {
  return std::uint64_t{key} << 32 | ~static_cast<std::uint32_t>(place);
}
__device__ __forceinline__ std::uint32_t key_in(std::uint64_t entry) { return entry >> 32; }
__device__ __forceinline__ int place_in(std::uint64_t entry) {
  return static_cast<int>(~static_cast<std::uint32_t>(entry));
}

// The elements of a row that a CTA has. Behind the row's last are -infinities.
struct Part {
  float* z;
  int size;   // a multiple of kPartStep
  int begin;  // in the row
  int count;  // of the row, which may be 0

  // The elements of this warp.
  __device__ __forceinline__ Span of_warp() const {
    const int share = size / kWarps;
    return {warp() * share, (warp() + 1) * share};
  }
};

__device__ __forceinline__ Part part_of_cta(const Group& group, float* z, int size,
                                            std::int64_t cols) {
  const int begin = group.rank() * size;
  return {z, size, begin, min(max(static_cast<int>(cols) - begin, 0), size)};
}

// The first place of the largest number, or of NaN, that a thread has seen.
class Best {
 public:
  // `kSize` numbers at once, in the order of their places.
  template <int kSize>
  __device__ __forceinline__ void look(const float* numbers, int at) {
    float largest = numbers[0];
#pragma unroll
    for (int k = 1; k < kSize; ++k) largest = larger_or_nan(largest, numbers[k]);
    if (!(largest <= top_) && top_ == top_) {
      top_ = largest;
      at_ = at;
    }
  }
  template <int kSize>
  __device__ __forceinline__ std::uint64_t entry(const Part& part) const {
    if (at_ < 0) return entry_of(key_of(top_), 0);
    int i = at_;
    while (i < at_ + kSize - 1 && part.z[i] != top_ && part.z[i] == part.z[i]) ++i;
    return entry_of(top_ == top_ ? key_of(top_) : kNanKey, part.begin + i);
  }

 private:
  float top_ = -kInfinity;
  int at_ = -1;  // of its pack
};

// Writes z[k], of element k of the part, as change(k, number of the row); returns the best entry of
// this thread's elements. A thread waits for kBatch packs at once.
template <int kBatch, class T, int kSize, class Change>
__device__ __forceinline__ std::uint64_t load_packs(const T* row, const Part& part, Change change) {
  using Packs = Pack<T, kSize>;
  constexpr int kStep = kThreads * kSize;
  const T* const x = row + part.begin;
  Best best;
  for (int first = threadIdx.x * kSize; first < part.size; first += kBatch * kStep) {
    typename Packs::Raw raw[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * kStep;
      if (i + kSize <= part.count) raw[b] = Packs::load(x + i);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * kStep;
      if (i >= part.size) break;
      typename Packs::Value wide[kSize];
      alignas(16) float number[kSize];
      if (i + kSize <= part.count) {
        Packs::unpack(raw[b], wide);
#pragma unroll
        for (int k = 0; k < kSize; ++k) number[k] = change(i + k, static_cast<float>(wide[k]));
      } else {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          number[k] =
              i + k < part.count ? change(i + k, static_cast<float>(widen(x[i + k]))) : -kInfinity;
        }
      }
      if constexpr (kSize % 4 == 0) {
#pragma unroll
        for (int k = 0; k < kSize; k += 4) {
          *reinterpret_cast<float4*>(part.z + i + k) =
              make_float4(number[k], number[k + 1], number[k + 2], number[k + 3]);
        }
      } else {
#pragma unroll
        for (int k = 0; k < kSize; ++k) part.z[i + k] = number[k];
      }
      best.template look<kSize>(number, i);
    }
  }
  return best.template entry<kSize>(part);
}

template <int kBatch, class T, class Change>
__device__ __forceinline__ std::uint64_t load_part(const T* row, const Part& part, Change change) {
  constexpr int kSize = sizeof(T) == sizeof(double) ? 1 : 16 / sizeof(T);
  if (reinterpret_cast<std::uintptr_t>(row) % 16 == 0) {
    return load_packs<kBatch, T, kSize>(row, part, change);
  }
  return load_packs<kBatch, T, 1>(row, part, change);
}

// ---- weights

template <bool kLimited>
__device__ __forceinline__ std::uint64_t sum_weights(const Part& part, const Weighing& by) {
  const Span own = part.of_warp();
  WholeSum sum;
#pragma unroll 2
  for (int i = own.begin + 4 * lane(); i < own.end; i += 4 * kWarp) {
    const float4 z = *reinterpret_cast<const float4*>(part.z + i);
    sum.add(weight_of<kLimited>(by, z.x));
    sum.add(weight_of<kLimited>(by, z.y));
    sum.add(weight_of<kLimited>(by, z.z));
    sum.add(weight_of<kLimited>(by, z.w));
  }
  return sum.sum();
}

// The sum of this thread's elements.
__device__ __forceinline__ std::uint64_t sum_weights(const Part& part, const Weighing& by) {
  const bool is_plain = !by.is_limited && by.top < kInfinity && by.scale == by.scale;
  return is_plain ? sum_weights<false>(part, by) : sum_weights<true>(part, by);
}

__device__ __forceinline__ std::uint64_t sum_weights_of_probabilities(const Part& part) {
  const Span own = part.of_warp();
  WholeSum sum;
  for (int i = own.begin + lane(); i < own.end; i += kWarp) {
    sum.add(weight_of_probability(part.z[i]));
  }
  return sum.sum();
}

}  // namespace transformer_kernels::cuda::sampling
