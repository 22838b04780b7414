// SPDX-License-Identifier: MIT
// Numbers of 16, 8 and 4 bits as tensor cores take them: pairs of 16-bit floats.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/types.h"

namespace transformer_kernels::cuda {

// Numbers in a line's words, with terms in order. Step s of a lane takes its terms 4 s .. 4 s + 3,
// a pair in each of the two words that mma takes. arrange() brings a lane's terms of x into the
// order of these pairs.
template <class T>
struct SixteenBits {
  static constexpr int kPerWord = 2;
  static constexpr bool kScaled = false;

  static __device__ __forceinline__ void step(const std::uint32_t* line, int s,
                                              std::uint32_t (&words)[2]) {
    words[0] = line[2 * s];
    words[1] = line[2 * s + 1];
  }
  template <int kWords>
  static __device__ __forceinline__ void arrange(std::uint32_t (&)[kWords]) {}
};

// Integers become floats of 16 bits by their place behind a leading one: in bfloat16 the last four
// bits of 0x4300 (128) and more count as 1 to 8, in float16 the last eight of 0x6400 (1024).
template <class T>
struct Magic;
template <>
struct Magic<BFloat16> {
  static constexpr std::uint32_t kOne = 0x43004300u;
  using Two = __nv_bfloat162;
};
template <>
struct Magic<Half> {
  static constexpr std::uint32_t kOne = 0x64006400u;
  using Two = __half2;
};

// a & mask ^ other, in the one instruction that it is: of two constants one has to be a register.
__device__ __forceinline__ std::uint32_t and_xor(std::uint32_t a, std::uint32_t mask,
                                                 std::uint32_t other) {
  std::uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(mask), "r"(other));
  return d;
}

// Exact wherever T holds the difference.
template <class T>
__device__ __forceinline__ std::uint32_t subtract_two(std::uint32_t a, std::uint32_t b) {
  using Two = typename Magic<T>::Two;
  const Two two = __hsub2(*reinterpret_cast<const Two*>(&a), *reinterpret_cast<const Two*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&two);
}

template <class T>
struct EightBits {
  static constexpr int kPerWord = 4;
  static constexpr bool kScaled = true;

  // Bytes in the low halves of two numbers of 16 bits. bfloat16 has room for seven of the bits: the
  // eighth, which is worth -128, doubles the amount to subtract.
  static __device__ __forceinline__ std::uint32_t convert(std::uint32_t bytes) {
    constexpr std::uint32_t kOne = Magic<T>::kOne;
    if constexpr (std::is_same_v<T, BFloat16>) {
      return subtract_two<T>(and_xor(bytes, 0x007f007fu, kOne), and_xor(bytes, 0x00800080u, kOne));
    } else {
      return subtract_two<T>(bytes ^ (0x00800080u | kOne), 0x00800080u | kOne);
    }
  }
  static __device__ __forceinline__ void step(const std::uint32_t* line, int s,
                                              std::uint32_t (&words)[2]) {
    words[0] = convert(__byte_perm(line[s], 0, 0x4140));
    words[1] = convert(__byte_perm(line[s], 0, 0x4342));
  }
  template <int kWords>
  static __device__ __forceinline__ void arrange(std::uint32_t (&)[kWords]) {}
};

template <class T>
struct FourBits {
  static constexpr int kPerWord = 8;
  static constexpr bool kScaled = true;
  static constexpr std::uint32_t kZero = Magic<T>::kOne | 0x00080008u;

  // A mask takes nibbles i and i + 4 of a word at once, so these are a pair.
  static __device__ __forceinline__ std::uint32_t pair(std::uint32_t word, int i) {
    return subtract_two<T>(and_xor(word >> 4 * i, 0x000f000fu, kZero), kZero);
  }
  static __device__ __forceinline__ void step(const std::uint32_t* line, int s,
                                              std::uint32_t (&words)[2]) {
    words[0] = pair(line[s / 2], s % 2 * 2);
    words[1] = pair(line[s / 2], s % 2 * 2 + 1);
  }
  template <int kWords>
  static __device__ __forceinline__ void arrange(std::uint32_t (&x)[kWords]) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const std::uint32_t low[2] = {x[i], x[i + 1]};
      const std::uint32_t high[2] = {x[i + 2], x[i + 3]};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        x[i + 2 * j] = __byte_perm(low[j], high[j], 0x5410);
        x[i + 2 * j + 1] = __byte_perm(low[j], high[j], 0x7632);
      }
    }
  }
};

}  // namespace transformer_kernels::cuda
