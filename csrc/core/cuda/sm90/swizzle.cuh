// SPDX-License-Identifier: MIT
// Rows in shared memory as TMA's swizzles lay them: their 16-byte pieces change places, so that the
// same piece of eight neighbouring rows lies in different banks.
#pragma once

#include <cstdint>

namespace transformer_kernels::cuda {

// Rows of 64 or 128 bytes. `rows` starts at a multiple of 8 kRowBytes.
template <int kRowBytes>
__device__ __forceinline__ std::uint32_t swizzled(std::uint32_t rows, int row, int piece) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  const int mixed = kRowBytes == 128 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3);
  return rows + row * kRowBytes + mixed * 16;
}

}  // namespace transformer_kernels::cuda
