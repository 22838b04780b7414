// SPDX-License-Identifier: MIT
// The random numbers of dropout on CUDA, drawn by the threads that need them.
#pragma once

#include "core/cuda/pack.cuh"
#include "core/math/philox.h"
#include "pointwise/dropout_problem.h"

namespace transformer_kernels::cuda {

inline constexpr int kDropoutNumbers = 8;  // of 16 bits, of one counter

// The draw of a kernel: seed and offset are read once by each thread, from memory where a graph
// that is replayed finds others there.
class DropoutNumbers {
 public:
  __device__ __forceinline__ explicit DropoutNumbers(const DropoutDraw& draw)
      : key_(draw.seed_data != nullptr ? draw.seed_data[0] : draw.seed),
        offset_(draw.seed_data != nullptr ? draw.seed_data[1] : draw.offset) {}

  // The numbers of eight elements, the first of which is a multiple of eight.
  __device__ __forceinline__ uint4 aligned(std::int64_t element) const {
    const PhiloxWords words =
        philox(key_, static_cast<std::uint64_t>(element) / kDropoutNumbers, offset_);
    return make_uint4(words.word[0], words.word[1], words.word[2], words.word[3]);
  }

  // The numbers of kSize elements, 8, 4 or 1, the first of which is a multiple of kSize.
  template <int kSize>
  __device__ __forceinline__ uint4 of_pack(std::int64_t element) const {
    const uint4 eight = aligned(element);
    if constexpr (kSize == 8) {
      return eight;
    } else if constexpr (kSize == 4) {
      return element & 4 ? make_uint4(eight.z, eight.w, 0, 0) : eight;
    } else {
      return shift_packs<2>(eight, eight, static_cast<int>(element % kDropoutNumbers) * 2);
    }
  }

  // The numbers of any eight neighbouring elements.
  __device__ __forceinline__ uint4 any(std::int64_t element) const {
    const int skip = static_cast<int>(element % kDropoutNumbers);
    const uint4 low = aligned(element);
    return skip == 0 ? low : shift_packs<2>(low, aligned(element + kDropoutNumbers), 2 * skip);
  }

  // The numbers of two packs of four elements, where a pair of threads shares two groups of eight:
  // the even thread owns the first half of each group, the odd one (`odd`) the last. `element`
  // begins the first group, and the second begins `distance` elements later. Each thread draws one
  // group for both.
  __device__ __forceinline__ uint4 of_pair(std::int64_t element, std::int64_t distance,
                                           bool odd) const {
    const uint4 own = aligned(element + (odd ? distance : 0));
    const std::uint32_t lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32;
    const std::uint32_t pair = 3u << (lane & ~1u);
    const std::uint32_t x = __shfl_xor_sync(pair, odd ? own.x : own.z, 1);
    const std::uint32_t y = __shfl_xor_sync(pair, odd ? own.y : own.w, 1);
    return odd ? make_uint4(x, y, own.z, own.w) : make_uint4(own.x, own.y, x, y);
  }

 private:
  std::uint64_t key_;
  std::uint64_t offset_;
};

// value * scale of the elements that stay, 0 of the others, whatever they are. The numbers of
// kSize elements begin at number kFirst.
template <int kFirst, int kSize, class A>
__device__ __forceinline__ void drop(const uint4& numbers, std::uint32_t below, A scale,
                                     A (&value)[kSize]) {
  const std::uint32_t word[] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    const int n = kFirst + k;
    const std::uint32_t number = n % 2 == 0 ? word[n / 2] & 0xffff : word[n / 2] >> 16;
    value[k] = number < below ? A{0} : value[k] * scale;
  }
}

}  // namespace transformer_kernels::cuda
