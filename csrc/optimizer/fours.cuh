// SPDX-License-Identifier: MIT
// Fours: the four neighbouring elements that a lane moves at once, of a dtype that is known when
// the kernel runs. All threads of a CTA have one tensor, so that they take the same branches.
#pragma once

#include "core/cuda/pack.cuh"
#include "optimizer/tables.h"

namespace transformer_kernels::cuda {

// Where a four lies: at `index`, with `count` elements of the tensor in it, at most 4. A pack is
// whole, and at an address that one load takes.
template <bool kIsPack>
struct FourPlace {
  std::int64_t index;
  int count;
};

// A four as it lies in memory. Elements that are not the tensor's are 0.
template <class A>
struct RawFour;
template <>
struct RawFour<float> {
  std::uint32_t word[4];
};
template <>
struct RawFour<double> {
  double value[4];
};

template <class T>
__device__ __forceinline__ void load_elements(const void* data, FourPlace<false> at,
                                              RawFour<float>& raw) {
  const T* const x = static_cast<const T*>(data) + at.index;
  constexpr int kPerWord = 4 / sizeof(T);
#pragma unroll
  for (int i = 0; i < 4 / kPerWord; ++i) raw.word[i] = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k >= at.count) break;
    raw.word[k / kPerWord] |= std::uint32_t{x[k]} << (k % kPerWord * 8 * sizeof(T) % 32);
  }
}

template <bool kIsPack>
__device__ __forceinline__ void load_four(const void* data, DType dtype, FourPlace<kIsPack> at,
                                          RawFour<float>& raw) {
  switch (dtype) {
    case DType::kFloat32:
      if constexpr (kIsPack) {
        const uint4 v = load_global_in_order(static_cast<const float*>(data) + at.index);
        raw = {{v.x, v.y, v.z, v.w}};
      } else {
        load_elements<std::uint32_t>(data, at, raw);
      }
      break;
    case DType::kUInt8:
      if constexpr (kIsPack) {
        const auto* const codes = static_cast<const std::uint8_t*>(data) + at.index;
        raw.word[0] = *reinterpret_cast<const std::uint32_t*>(codes);
      } else {
        load_elements<std::uint8_t>(data, at, raw);
      }
      break;
    default:
      if constexpr (kIsPack) {
        const uint2 v = load_global_8_in_order(static_cast<const Half*>(data) + at.index);
        raw.word[0] = v.x, raw.word[1] = v.y;
      } else {
        load_elements<std::uint16_t>(data, at, raw);
      }
  }
}

template <bool kIsPack>
__device__ __forceinline__ void load_four(const void* data, DType, FourPlace<kIsPack> at,
                                          RawFour<double>& raw) {
  const double* const x = static_cast<const double*>(data) + at.index;
#pragma unroll
  for (int k = 0; k < 4; ++k) raw.value[k] = k < at.count ? x[k] : 0;
}

// The numbers of a four, other than codes.
__device__ __forceinline__ void widen_four(const RawFour<float>& raw, DType dtype, float* out) {
  switch (dtype) {
    case DType::kFloat32:
#pragma unroll
      for (int k = 0; k < 4; ++k) out[k] = __uint_as_float(raw.word[k]);
      break;
    case DType::kFloat16:
      widen_word<Half>(raw.word[0], out);
      widen_word<Half>(raw.word[1], out + 2);
      break;
    default: widen_word<BFloat16>(raw.word[0], out); widen_word<BFloat16>(raw.word[1], out + 2);
  }
}
__device__ __forceinline__ void widen_four(const RawFour<double>& raw, DType, double* out) {
#pragma unroll
  for (int k = 0; k < 4; ++k) out[k] = raw.value[k];
}

template <class T>
__device__ __forceinline__ void store_elements(void* data, FourPlace<false> at,
                                               const std::uint32_t* word) {
  T* const x = static_cast<T*>(data) + at.index;
  constexpr int kPerWord = 4 / sizeof(T);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k >= at.count) break;
    x[k] = static_cast<T>(word[k / kPerWord] >> (k % kPerWord * 8 * sizeof(T) % 32));
  }
}

// The compiler would make two stores of one of 8 bytes.
__device__ __forceinline__ void store_global_8(void* pointer, std::uint32_t low,
                                               std::uint32_t high) {
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(pointer), "r"(low), "r"(high) : "memory");
}

// Two words of 16-bit elements.
template <bool kIsPack>
__device__ __forceinline__ void store_halves(void* data, FourPlace<kIsPack> at, std::uint32_t low,
                                             std::uint32_t high) {
  if constexpr (kIsPack) {
    store_global_8(static_cast<Half*>(data) + at.index, low, high);
  } else {
    const std::uint32_t word[] = {low, high};
    store_elements<std::uint16_t>(data, at, word);
  }
}

// One word of codes.
template <bool kIsPack>
__device__ __forceinline__ void store_codes(void* data, FourPlace<kIsPack> at,
                                            std::uint32_t codes) {
  if constexpr (kIsPack) {
    auto* const to = static_cast<std::uint8_t*>(data) + at.index;
    *reinterpret_cast<std::uint32_t*>(to) = codes;
  } else {
    store_elements<std::uint8_t>(data, at, &codes);
  }
}

// Writes numbers, rounded to the nearest.
template <bool kIsPack>
__device__ __forceinline__ void store_four(void* data, DType dtype, FourPlace<kIsPack> at,
                                           const float* x) {
  switch (dtype) {
    case DType::kFloat32: {
      const std::uint32_t word[] = {__float_as_uint(x[0]), __float_as_uint(x[1]),
                                    __float_as_uint(x[2]), __float_as_uint(x[3])};
      if constexpr (kIsPack) {
        store_global(static_cast<float*>(data) + at.index,
                     make_uint4(word[0], word[1], word[2], word[3]));
      } else {
        store_elements<std::uint32_t>(data, at, word);
      }
      break;
    }
    case DType::kFloat16:
      store_halves(data, at, narrow_word<Half>(x), narrow_word<Half>(x + 2));
      break;
    default: store_halves(data, at, narrow_word<BFloat16>(x), narrow_word<BFloat16>(x + 2));
  }
}
template <bool kIsPack>
__device__ __forceinline__ void store_four(void* data, DType, FourPlace<kIsPack> at,
                                           const double* x) {
  double* const to = static_cast<double*>(data) + at.index;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < at.count) to[k] = x[k];
  }
}

}  // namespace transformer_kernels::cuda
