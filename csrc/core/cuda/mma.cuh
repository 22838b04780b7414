// SPDX-License-Identifier: MIT
// The PTX of tensor cores from sm_80 on: mma.sync, ldmatrix, cp.async. Each function is one
// instruction and keeps its name. Shared-memory addresses are 32-bit.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/types.h"

namespace transformer_kernels::cuda {

// Four 8x8 matrices of 16-bit elements. Lane l names 16 bytes, row l % 8 of matrix l / 8; it gets
// elements 2 * (l % 4) and the one after it of row l / 4 of each matrix.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// ldmatrix_x4 of the transposed matrices.
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The transpose of an 8x8 matrix of 16-bit elements, before and after as ldmatrix gives it.
__device__ __forceinline__ std::uint32_t movmatrix_trans(std::uint32_t a) {
  std::uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// c += a b, with a 16x16, b 16x8 and c 16x8. Of c a lane has elements 2 * (lane % 4) and the one
// after it of rows lane / 4 (c[0], c[1]) and lane / 4 + 8 (c[2], c[3]).
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, Half>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// c += a b of TF32, with a 16x8, b 8x8 and c 16x8: of a float32 the sign, the exponent and 10 bits
// of the mantissa count. Products are exact, sums are cut off instead of rounded.
__device__ __forceinline__ void mma_m16n8k8(float (&c)[4], const std::uint32_t (&a)[4],
                                            std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// kBytes (16 past L1, or 4 or 8) into shared memory; zeros, with nothing read, where not `valid`.
template <int kBytes>
__device__ __forceinline__ void cp_async(std::uint32_t destination, const void* source,
                                         bool valid) {
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(destination), "l"(source),
                 "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until no more than kGroups of this thread's groups are under way.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace transformer_kernels::cuda
