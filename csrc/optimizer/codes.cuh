// SPDX-License-Identifier: MIT
// States of 8 bits on CUDA, with the codes of code_lines.h and the arithmetic of codes.h, bit for
// bit. A warp has one block of elements.
#pragma once

#include "core/cuda/reduce.cuh"
#include "optimizer/code_lines.h"
#include "optimizer/fours.cuh"

namespace transformer_kernels::cuda {

template <int kBits>
struct Codes : CodeLines<kBits> {
  using Lines = CodeLines<kBits>;

  static __device__ __forceinline__ float value(float code) {
    float top = product(code, Lines::power_of_ten(0));
#pragma unroll
    for (int digit = 1; digit < kBits; ++digit) {
      constexpr auto line_of = [](int d) { return Lines::value(d); };
      top = fmaxf(fmaf(code, line_of(digit).slope, line_of(digit).start), top);
    }
    return top;
  }

  static __device__ __forceinline__ float place(float y) {
    float least = product(y, 1 / Lines::power_of_ten(0));
#pragma unroll
    for (int digit = 0; digit < kBits; ++digit) {
      constexpr auto line_of = [](int d) { return Lines::place(d); };
      least = fminf(fmaf(y, line_of(digit).slope, line_of(digit).start), least);
    }
    return least;
  }
};

// The values of all codes; of signed ones the magnitudes.
struct CodeValues {
  float magnitude[128];
  float number[256];

  __device__ void fill() {
    for (int code = static_cast<int>(threadIdx.x); code < 256; code += kUpdateThreads) {
      const auto c = static_cast<float>(code);
      if (code < 128) magnitude[code] = Codes<7>::value(c);
      number[code] = Codes<8>::value(c);
    }
  }
};

// -128 is no code that is written; it is read as -127.
template <bool kSigned>
__device__ __forceinline__ void widen_codes(std::uint32_t codes, const CodeValues& values,
                                            float scale, float* out) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t byte = codes >> (8 * k) & 255;
    if constexpr (kSigned) {
      const int code = static_cast<std::int8_t>(byte);
      const float value = product(values.magnitude[min(abs(code), 127)], scale);
      out[k] = code < 0 ? -value : value;
    } else {
      out[k] = product(values.number[byte], scale);
    }
  }
}

// The largest magnitude of a warp's numbers; NaN where one is not finite.
template <int kCount>
__device__ __forceinline__ float largest_of_warp(const float* x) {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  std::uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) top = max(top, __float_as_uint(x[i]) & 0x7fffffff);
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    top = max(top, __shfl_xor_sync(kAllLanes, top, offset));
  }
  return __uint_as_float(top >= kInfinity ? 0x7fc00000 : top);
}

// The scale of a block's codes and what its numbers are multiplied by.
template <bool kSigned>
struct BlockScale {
  using Of = Codes<kSigned ? 7 : 8>;

  float scale;
  float inverse;

  explicit __device__ __forceinline__ BlockScale(float largest)
      : scale(largest / Of::largest_value()),
        inverse(scale > 0 ? 1 / scale : 0) {}

  // The codes of a four, by 16 random bits each; `random` has two words of them.
  __device__ __forceinline__ std::uint32_t codes(const float* x,
                                                 const std::uint32_t* random) const {
    if (!(scale >= 0)) return 0x01010101;
    std::uint32_t word = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const auto chance = static_cast<float>(random[k / 2] >> (k % 2 * 16) & 0xffff);
      const float place = Of::place(product(fabsf(x[k]), inverse));
      int code = static_cast<int>(fminf(__fadd_rn(place, product(chance, 0x1p-16f)), Of::kLargest));
      if constexpr (kSigned) {
        code = x[k] < 0 ? -code : code;
      } else {
        code = x[k] == 0 ? 0 : max(code, 1);
      }
      word |= static_cast<std::uint32_t>(code & 255) << (8 * k);
    }
    return word;
  }
};

}  // namespace transformer_kernels::cuda
