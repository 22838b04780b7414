// SPDX-License-Identifier: MIT
// Runs an epilogue of Hopper's GEMM (gemm.cuh) that stores sums from the registers in which they
// are.
#pragma once

#include "core/cuda/hopper.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/sm90/accumulator.cuh"
#include "linear/sm90/shape.cuh"

namespace transformer_kernels::cuda {

template <class Epilogue>
struct DirectResults {
  Epilogue epilogue;
  GemmExtent extent;
};

template <class T, class Shape, class Epilogue>
class DirectWriter {
 public:
  using Parameters = DirectResults<Epilogue>;
  struct Storage {};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

  static __device__ __forceinline__ void init(Storage&) {}

  template <class Tiles>
  static __device__ __forceinline__ void load(const Parameters&, const Tiles&, Storage&) {}

  __device__ __forceinline__ DirectWriter(const Parameters& p, Storage&, int, AccumulatorThread own)
      : p_(p),
        own_(own) {}

  __device__ __forceinline__ void touch(int) const {}

  template <class Unit>
  __device__ __forceinline__ void write(const typename Shape::Sums& sums, const Unit& unit,
                                        int) const {
    const auto store = p_.epilogue.template storer<T>(unit, p_.extent);
    const int row = unit.place.row * Shape::kRows;
    const int col = unit.place.col * Shape::kOutCols;
#pragma unroll
    for (int band = 0; band < Shape::kBands; ++band) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int own_row = row + band * 64 + own_.row(half);
        if (own_row >= p_.extent.rows) continue;
#pragma unroll
        for (int i = 0; i < Shape::kCols / 8; ++i) {
          const int own_col = col + own_.col(i);
          if (own_col < p_.extent.cols) {
            store(MatrixOrigin{own_col, own_row}, sums[band] + own_.sum(half, i));
          }
        }
      }
    }
  }

  __device__ __forceinline__ void finish() const {}

 private:
  const Parameters& p_;
  AccumulatorThread own_;

#endif  // sm_90a
};

// The writer that runs an epilogue; chains have theirs (staged_writer.cuh).
template <class T, class Shape, class Epilogue>
struct WriterOf {
  using Type = DirectWriter<T, Shape, Epilogue>;
};

}  // namespace transformer_kernels::cuda
