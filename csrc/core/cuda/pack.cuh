// SPDX-License-Identifier: MIT
// Packs: the 16 bytes, or the single element, that one thread moves at once, and their values in
// the type that sums are kept in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "core/types.h"

namespace transformer_kernels::cuda {

// One element to and from its accumulation type; rounds to nearest even.
__device__ __forceinline__ double widen(double v) { return v; }
__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ float widen(Half v) { return __half2float(__ushort_as_half(v.bits)); }
__device__ __forceinline__ float widen(BFloat16 v) {
  return __uint_as_float(static_cast<std::uint32_t>(v.bits) << 16);
}

template <class T>
__device__ __forceinline__ T narrow(accumulate_t<T> v) {
  if constexpr (std::is_same_v<T, Half>) {
    return {__half_as_ushort(__float2half_rn(v))};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(v))};
  } else {
    return v;
  }
}

// 32 bits hold one float or two 16-bit values.
template <class T>
__device__ __forceinline__ void widen_word(std::uint32_t word, float* out) {
  if constexpr (std::is_same_v<T, float>) {
    out[0] = __uint_as_float(word);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    out[0] = __uint_as_float(word << 16);
    out[1] = __uint_as_float(word & 0xffff0000u);
  } else {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word));
    out[0] = pair.x;
    out[1] = pair.y;
  }
}

// widen_word() by other instructions. The compiler takes the same unpacking in two passes for one
// common subexpression, and would keep the unpacked values, in twice the registers.
template <class T>
__device__ __forceinline__ void widen_word_again(std::uint32_t word, float* out) {
  if constexpr (std::is_same_v<T, float>) {
    out[0] = __uint_as_float(word);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    out[0] = __uint_as_float(__byte_perm(word, 0, 0x1044));
    out[1] = __uint_as_float(__byte_perm(word, 0, 0x3244));
  } else {
    float swapped[2];
    widen_word<T>(__byte_perm(word, 0, 0x1032), swapped);
    out[0] = swapped[1];
    out[1] = swapped[0];
  }
}

template <class T>
__device__ __forceinline__ std::uint32_t narrow_word(const float* in) {
  if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(in[0]);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(in[0], in[1]);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(in[0], in[1]);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

// The 16 bytes that start `shift` < 16 bytes behind the start of `low`; `high` follows it. Elements
// of kElementBytes are not torn.
template <int kElementBytes>
__device__ __forceinline__ uint4 shift_packs(uint4 low, uint4 high, int shift) {
  std::uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) word[i] = shift & 8 ? word[i + 2] : word[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) word[i] = shift & 4 ? word[i + 1] : word[i];
  if constexpr (kElementBytes < 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = __funnelshift_r(word[i], word[i + 1], shift % 4 * 8);
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// A pack of kSize elements of T. Only 16-byte packs may live in shared memory here.
template <class T, int kSize>
struct Pack {
  static_assert(kSize == 1 || kSize * sizeof(T) == 16);
  static constexpr int size = kSize;
  using Value = accumulate_t<T>;
  using Raw = std::conditional_t<kSize == 1, T, uint4>;

  static __device__ __forceinline__ Raw load(const T* pointer) {
    if constexpr (kSize == 1) {
      return *pointer;
    } else {
      return load_global_once(pointer);
    }
  }

  // For parameters, which every row reads: keep them in L1.
  static __device__ __forceinline__ Raw load_cached(const T* pointer) {
    if constexpr (kSize == 1) {
      return *pointer;
    } else {
      return __ldg(reinterpret_cast<const uint4*>(pointer));
    }
  }

  static __device__ __forceinline__ void store(T* pointer, Raw raw) {
    if constexpr (kSize == 1) {
      *pointer = raw;
    } else {
      store_global(pointer, raw);
    }
  }

  static __device__ __forceinline__ void unpack(Raw raw, Value* out) {
    if constexpr (kSize == 1) {
      out[0] = widen(raw);
    } else {
      constexpr int kPerWord = 4 / sizeof(T);
      widen_word<T>(raw.x, out);
      widen_word<T>(raw.y, out + kPerWord);
      widen_word<T>(raw.z, out + 2 * kPerWord);
      widen_word<T>(raw.w, out + 3 * kPerWord);
    }
  }

  // unpack() for a second pass; 16-byte packs of a type that float holds.
  static __device__ __forceinline__ void unpack_again(Raw raw, Value* out) {
    constexpr int kPerWord = 4 / sizeof(T);
    widen_word_again<T>(raw.x, out);
    widen_word_again<T>(raw.y, out + kPerWord);
    widen_word_again<T>(raw.z, out + 2 * kPerWord);
    widen_word_again<T>(raw.w, out + 3 * kPerWord);
  }

  static __device__ __forceinline__ Raw pack(const Value* in) {
    if constexpr (kSize == 1) {
      return narrow<T>(in[0]);
    } else {
      constexpr int kPerWord = 4 / sizeof(T);
      return make_uint4(narrow_word<T>(in), narrow_word<T>(in + kPerWord),
                        narrow_word<T>(in + 2 * kPerWord), narrow_word<T>(in + 3 * kPerWord));
    }
  }
};

// kSize parameters of type W that stand beside a pack of another type, in 16-byte loads.
template <class W, int kSize>
struct ParameterPack {
  static constexpr int kPieces = kSize == 1 ? 1 : kSize * static_cast<int>(sizeof(W)) / 16;
  using Piece = Pack<W, kSize / kPieces>;

  typename Piece::Raw piece[kPieces];

  __device__ __forceinline__ void load(const W* pointer) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) piece[i] = Piece::load_cached(pointer + i * Piece::size);
  }

  // load() for a kernel that starts before the kernel that writes the parameters has ended; packs
  // of 16 bytes only.
  __device__ __forceinline__ void load_in_order(const W* pointer) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) piece[i] = load_global_in_order(pointer + i * Piece::size);
  }

  // Columns [col, col + kSize) of `cols`, at any alignment; columns outside count as 0.
  __device__ __forceinline__ void load_shifted(const W* pointer, std::int64_t col,
                                               std::int64_t cols) {
    constexpr int kPerPiece = 16 / static_cast<int>(sizeof(W));
    if (col >= 0 && col + kSize + kPerPiece <= cols) {
      load_unaligned(pointer + col);
    } else {
      alignas(16) W element[kSize] = {};
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (col + k >= 0 && col + k < cols) element[k] = pointer[col + k];
      }
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        piece[i] = reinterpret_cast<const typename Piece::Raw&>(element[i * Piece::size]);
      }
    }
  }

  // These parameters as floats, bit for bit.
  __device__ __forceinline__ ParameterPack<float, kSize> widened() const {
    float value[kSize];
    unpack(value);
    ParameterPack<float, kSize> wide;
#pragma unroll
    for (int i = 0; i < wide.kPieces; ++i) wide.piece[i] = Pack<float, 4>::pack(value + i * 4);
    return wide;
  }

  __device__ __forceinline__ void unpack(typename Piece::Value* out) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) Piece::unpack(piece[i], out + i * Piece::size);
  }

  __device__ __forceinline__ void unpack_again(typename Piece::Value* out) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) Piece::unpack_again(piece[i], out + i * Piece::size);
  }

 private:
  // Out of the aligned packs that the wanted ones lie in, which may reach 15 bytes further.
  __device__ __forceinline__ void load_unaligned(const W* pointer) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    const int shift = static_cast<int>(address % 16);
    const uint4* const source = reinterpret_cast<const uint4*>(address - shift);
    uint4 low = __ldg(source);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint4 high = __ldg(source + i + 1);
      piece[i] = shift_packs<sizeof(W)>(low, high, shift);
      low = high;
    }
  }
};

}  // namespace transformer_kernels::cuda
