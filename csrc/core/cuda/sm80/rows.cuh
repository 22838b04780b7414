// SPDX-License-Identifier: MIT
// Copies rows of a matrix from global to shared memory by cp.async, and defines the order of their
// 16-byte pieces there, which ldmatrix reads without a bank conflict.
#pragma once

#include <cstdint>

#include "core/cuda/mma.cuh"

namespace transformer_kernels::cuda {

// Rows of kDim elements. The 16-byte pieces of a row are permuted within spans of 128 (64) bytes,
// so that the same piece of 8 neighbouring rows lies in different banks.
template <class T, int kDim>
struct SharedRows {
  static constexpr int kPitch = kDim * static_cast<int>(sizeof(T));
  static constexpr int kPieces = kPitch / 16;
  static constexpr int kSpan = kPitch % 128 == 0 ? 128 : 64;
  static_assert(kPitch % kSpan == 0);

  static __device__ __forceinline__ int offset(int row, int piece) {
    const int permutation = kSpan == 128 ? row & 7 : row >> 1 & 3;
    return row * kPitch + (piece ^ permutation) * 16;
  }
  // `bytes`, a multiple of 32, further along a row than `address`, which lies in its first 32.
  static __device__ __forceinline__ std::uint32_t along(std::uint32_t address, int bytes) {
    return (address ^ bytes % kSpan) + bytes / kSpan * kSpan;
  }
};

// Rows in global memory, from one on.
template <class T>
struct GlobalRows {
  static constexpr int kElementBytes = sizeof(T);
  static constexpr int kPerPiece = 16 / kElementBytes;

  char* data;
  std::int64_t stride;  // bytes
  int dim;
};

// Starts to copy rows [first, first + kRows) of which those from `end` on, like columns past
// dim, become zeros.
template <int kDim, int kRows, int kThreads, class T>
__device__ __forceinline__ void copy_rows(std::uint32_t target, const GlobalRows<T>& from,
                                          int first, int end) {
  using Rows = SharedRows<T, kDim>;
  constexpr int kStep = kThreads / Rows::kPieces;  // rows at once
  static_assert(kThreads % Rows::kPieces == 0 && kRows % kStep == 0);
  const int row = static_cast<int>(threadIdx.x) / Rows::kPieces;
  const int piece = static_cast<int>(threadIdx.x) % Rows::kPieces;
  const int rows = piece * GlobalRows<T>::kPerPiece < from.dim ? end - first - row : 0;
  const char* source = from.data + (first + row) * from.stride + piece * 16;
#pragma unroll
  for (int i = 0; i < kRows; i += kStep) {
    cp_async<16>(target + Rows::offset(row + i, piece), source, i < rows);
    source += kStep * from.stride;
  }
}

}  // namespace transformer_kernels::cuda
