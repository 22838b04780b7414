// SPDX-License-Identifier: MIT
// Products of a warp's rows on the tensor cores. 16-bit elements are multiplied as they are. A
// float32 is split as x = high + low, both TF32, which keeps 22 bits of x: x y = high high + high
// low + low high, three times the work. Tensor cores truncate sums, so each step of a float32
// product starts its own sum from 0, and ordinary additions collect the steps.
#pragma once

#include <type_traits>

#include "core/cuda/pack.cuh"
#include "core/cuda/sm80/fragment.cuh"
#include "core/cuda/sm80/rows.cuh"

namespace transformer_kernels::cuda {

template <class T>
concept TensorElement = sizeof(T) == 2;
template <class T>
concept SplitElement = std::is_same_v<T, float>;

// ---------------------------------------------------------------------------- 16 bits

// c += a b^T over kDim terms; a and b are rows in shared memory.
template <TensorElement T, int kDim, int kRows, int kCols>
__device__ __forceinline__ void multiply_rows(Fragment<kRows, kCols>& c, std::uint32_t a,
                                              std::uint32_t b) {
  using Rows = SharedRows<T, kDim>;
  const int lane = Lane().lane;
  a += Rows::offset(lane % 16, lane / 16);
  b += Rows::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int k = 0; k < kDim; k += 16) {
    std::uint32_t left[kRows / 16][4];
#pragma unroll
    for (int m = 0; m < kRows / 16; ++m) {
      ldmatrix_x4(left[m], Rows::along(a, k * 2) + m * 16 * Rows::kPitch);
    }
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      std::uint32_t right[4];
      ldmatrix_x4(right, Rows::along(b, k * 2) + n * 16 * Rows::kPitch);
#pragma unroll
      for (int m = 0; m < kRows / 16; ++m) {
        mma_m16n8k16<T>(c.at[m][2 * n], left[m], right[0], right[1]);
        mma_m16n8k16<T>(c.at[m][2 * n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// c += a b, a rounded to T; b is kCols rows in shared memory.
template <TensorElement T, int kDim, int kRows, int kCols>
__device__ __forceinline__ void multiply_fragment(Fragment<kRows, kDim>& c,
                                                  const Fragment<kRows, kCols>& a,
                                                  std::uint32_t b) {
  using Rows = SharedRows<T, kDim>;
  const int lane = Lane().lane;
  b += Rows::offset(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    std::uint32_t left[kRows / 16][4];
#pragma unroll
    for (int m = 0; m < kRows / 16; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) left[m][i] = narrow_word<T>(a.at[m][2 * k + i / 2] + i % 2 * 2);
    }
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      std::uint32_t right[4];
      ldmatrix_x4_trans(right, Rows::along(b, n * 32) + k * 16 * Rows::kPitch);
#pragma unroll
      for (int m = 0; m < kRows / 16; ++m) {
        mma_m16n8k16<T>(c.at[m][2 * n], left[m], right[0], right[1]);
        mma_m16n8k16<T>(c.at[m][2 * n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// A lane's part of a result of multiply_fragment into rows of T in shared memory.
template <TensorElement T, int kDim, int kRows>
__device__ __forceinline__ void write_result(Fragment<kRows, kDim>& values, unsigned char* at) {
  const Lane lane;
#pragma unroll
  for (int m = 0; m < kRows / 16; ++m) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = SharedRows<T, kDim>::offset(lane.row(2 * m + half), n) + lane.col() * 2;
        *reinterpret_cast<std::uint32_t*>(at + place) = narrow_word<T>(values.at[m][n] + 2 * half);
      }
    }
  }
}

// ---------------------------------------------------------------------------- float32

// A lane's words of an operand of TF32, in two parts.
template <int kWords>
struct SplitOperand {
  std::uint32_t high[kWords];
  std::uint32_t low[kWords];

  SplitOperand() = default;
  __device__ __forceinline__ explicit SplitOperand(const std::uint32_t* raw) {
    constexpr std::uint32_t kDropped = 0x1fff;  // bits of a mantissa that TF32 lacks
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      // Rounds to nearest. cvt.rna also handles infinities, which would cost as much again.
      high[i] = (raw[i] + (kDropped + 1) / 2) & ~kDropped;
      low[i] = __float_as_uint(__uint_as_float(raw[i]) - __uint_as_float(high[i]));
    }
  }
};

// c += a b, small terms first.
__device__ __forceinline__ void add_product(float (&c)[4], const SplitOperand<4>& a,
                                            const SplitOperand<2>& b) {
  float sum[4] = {};
  mma_m16n8k8(sum, a.low, b.high[0], b.high[1]);
  mma_m16n8k8(sum, a.high, b.low[0], b.low[1]);
  mma_m16n8k8(sum, a.high, b.high[0], b.high[1]);
#pragma unroll
  for (int e = 0; e < 4; ++e) c[e] += sum[e];
}

// The thread's place in its warp, read again at each use: registers are scarce, and values computed
// from it do not wait in them over a loop.
__device__ __forceinline__ int lane_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % kWarp;
}

// Loops are rolled up, or else operands are read and split so early that registers run out.
template <SplitElement T, int kDim, int kRows, int kCols>
__device__ __forceinline__ void multiply_rows(Fragment<kRows, kCols>& c, std::uint32_t a,
                                              std::uint32_t b) {
  using Rows = SharedRows<T, kDim>;
  const int lane = lane_again();
  a += Rows::offset(lane % 16, lane / 16);
  b += Rows::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll 2
  for (int k = 0; k < kDim; k += 8) {
    SplitOperand<4> left[kRows / 16];
#pragma unroll
    for (int m = 0; m < kRows / 16; ++m) {
      std::uint32_t raw[4];
      ldmatrix_x4(raw, Rows::along(a, k * 4) + m * 16 * Rows::kPitch);
      left[m] = SplitOperand<4>(raw);
    }
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      std::uint32_t raw[4];
      ldmatrix_x4(raw, Rows::along(b, k * 4) + n * 16 * Rows::kPitch);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const SplitOperand<2> right(raw + 2 * tile);
#pragma unroll
        for (int m = 0; m < kRows / 16; ++m) add_product(c.at[m][2 * n + tile], left[m], right);
      }
    }
  }
}

// A sum over rows has its terms in any order that both operands share: term i of a step is row 2 i,
// then 2 (i - 4) + 1, as the lanes have them of a fragment. A lane reads 4 columns of a row at
// once, one for each of 4 tiles: column i of tile t of a group is column 4 i + t of its 32.
template <SplitElement T, int kDim, int kRows, int kCols>
__device__ __forceinline__ void multiply_fragment(Fragment<kRows, kDim>& c,
                                                  const Fragment<kRows, kCols>& a,
                                                  std::uint32_t b) {
  using Rows = SharedRows<T, kDim>;
  const int lane = lane_again();
  b += Rows::offset(lane % 4 * 2, lane / 4);
  Fragment<kRows, kCols> rest = a;
#pragma unroll 1
  for (int k = 0; k < kCols / 8; ++k) {
    SplitOperand<4> left[kRows / 16];
#pragma unroll
    for (int m = 0; m < kRows / 16; ++m) {
      const float(&x)[4] = rest.at[m][0];
      const std::uint32_t raw[4] = {__float_as_uint(x[0]), __float_as_uint(x[2]),
                                    __float_as_uint(x[1]), __float_as_uint(x[3])};
      left[m] = SplitOperand<4>(raw);
    }
#pragma unroll
    for (int group = 0; group < kDim / 32; ++group) {
      const std::uint32_t at = b + k * 8 * Rows::kPitch + group * 128;
      const uint4 even = load_shared(at);
      const uint4 odd = load_shared((at ^ 16) + Rows::kPitch);
      const std::uint32_t raw[4][2] = {
          {even.x, odd.x}, {even.y, odd.y}, {even.z, odd.z}, {even.w, odd.w}};
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        const SplitOperand<2> right(raw[tile]);
#pragma unroll
        for (int m = 0; m < kRows / 16; ++m) add_product(c.at[m][group * 4 + tile], left[m], right);
      }
    }
    rest.shift();
  }
}

// The columns of a group's 4 tiles lie side by side.
template <SplitElement T, int kDim, int kRows>
__device__ __forceinline__ void write_result(Fragment<kRows, kDim>& values, unsigned char* at) {
  const Lane lane;
#pragma unroll
  for (int m = 0; m < kRows / 16; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane.row(2 * m + half);
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        const auto element = [&](int i) { return values.at[m][n / 2 * 4 + i][2 * half + n % 2]; };
        const int piece = n / 2 * 8 + lane.col() + n % 2;
        *reinterpret_cast<float4*>(at + SharedRows<T, kDim>::offset(row, piece)) =
            make_float4(element(0), element(1), element(2), element(3));
      }
    }
  }
}

// ---------------------------------------------------------------------------- both

// Rows of a warp to global memory, by way of shared memory that nobody else uses: `at` is where the
// warp's first row lies. Rows from `count` on stay out.
template <class T, int kDim, int kRows>
__device__ __forceinline__ void store_rows(Fragment<kRows, kDim>& values, unsigned char* at,
                                           const GlobalRows<T>& to, int count) {
  using Rows = SharedRows<T, kDim>;
  write_result<T>(values, at);
  __syncwarp();
  for (int i = Lane().lane; i < kRows * Rows::kPieces; i += kWarp) {
    const int row = i / Rows::kPieces;
    const int piece = i % Rows::kPieces;
    if (row >= count || piece * GlobalRows<T>::kPerPiece >= to.dim) continue;
    store_global(to.data + row * to.stride + piece * 16,
                 *reinterpret_cast<const uint4*>(at + Rows::offset(row, piece)));
  }
}

}  // namespace transformer_kernels::cuda
