// SPDX-License-Identifier: MIT
// Scales of quantised weights, in any of their dtypes.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels::cuda {

// A scale as it is stored, so that its load may overlap other work.
__device__ __forceinline__ std::uint32_t scale_bits(const void* scale, DType dtype) {
  if (dtype == DType::kFloat32) return *static_cast<const std::uint32_t*>(scale);
  return *static_cast<const std::uint16_t*>(scale);
}

__device__ __forceinline__ float scale_of(std::uint32_t bits, DType dtype) {
  if (dtype == DType::kFloat32) return __uint_as_float(bits);
  if (dtype == DType::kBFloat16) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ __forceinline__ float scale_at(const void* scales, DType dtype, std::int64_t index) {
  const std::int64_t bytes = dtype == DType::kFloat32 ? 4 : 2;
  return scale_of(scale_bits(static_cast<const std::byte*>(scales) + index * bytes, dtype), dtype);
}

// from + index * step, in the one instruction that it is.
__device__ __forceinline__ const std::byte* advanced(const void* from, int index, int step) {
  const std::byte* to;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(to) : "r"(index), "r"(step), "l"(from));
  return to;
}

// The scales of a weight whose terms are read in chunks, each of one group; null where it has none.
struct GroupScales {
  const void* data;
  int step_bytes;  // from line to line
  int bytes;       // of each
  DType dtype;
  std::uint32_t groups_of_a_chunk;  // times 2^32, rounded up; 0: a chunk is a group

  __device__ __forceinline__ int group_of(int chunk) const {
    return groups_of_a_chunk == 0 ? chunk : static_cast<int>(__umulhi(chunk, groups_of_a_chunk));
  }

  // The scale of a group in the aligned word of four bytes that it lies in, of which selector()
  // says the bytes: as a float32, or for float16 as the lower half.
  __device__ __forceinline__ std::uint32_t selector(int group) const {
    if (dtype == DType::kFloat32) return 0x3210;
    const bool is_upper = group % 2 != 0;
    if (dtype == DType::kBFloat16) return is_upper ? 0x3244 : 0x1044;
    return is_upper ? 0x4432 : 0x4410;
  }
  __device__ __forceinline__ float value(std::uint32_t word, std::uint32_t selector) const {
    const std::uint32_t bits = __byte_perm(word, 0, selector);
    const float of_half = scale_of(bits, DType::kFloat16);
    return dtype == DType::kFloat16 ? of_half : __uint_as_float(bits);
  }
};

}  // namespace transformer_kernels::cuda
