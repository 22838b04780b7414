// SPDX-License-Identifier: MIT
// Runs an epilogue of Ampere's GEMM (gemm.cuh) that stores sums from the registers in which they
// are.
#pragma once

#include "linear/sm80/shape.cuh"

namespace transformer_kernels::cuda::ampere {

template <class T, class Shape, class Epilogue>
class DirectWriter {
 public:
  struct Parameters {
    Epilogue epilogue;
    GemmExtent extent;
  };
  struct Storage {};

  __device__ __forceinline__ DirectWriter(const Parameters& p, Storage&, const GemmUnit& unit)
      : p_(p),
        unit_(unit) {}

  __device__ __forceinline__ void write(typename Shape::Sums& sums) const {
    static_assert(Shape::kProducts == 1);
    const auto store = p_.epilogue.template storer<T>(unit_, p_.extent);
    const MatrixOrigin first = origin_of_warp<Shape>(unit_.place);
    const Lane lane;
#pragma unroll
    for (int m = 0; m < Shape::kWarpRows / 16; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first.row + lane.row(2 * m + half);
        if (row >= p_.extent.rows) continue;
#pragma unroll
        for (int n = 0; n < Shape::kWarpCols / 8; ++n) {
          const int col = first.col + n * 8 + lane.col();
          if (col < p_.extent.cols) store(MatrixOrigin{col, row}, sums.at[m][n] + 2 * half);
        }
      }
    }
  }

 private:
  const Parameters& p_;
  const GemmUnit& unit_;
};

// The writer that runs an epilogue; chains have theirs (chunk_writer.cuh).
template <class T, class Shape, class Epilogue>
struct WriterOf {
  using Type = DirectWriter<T, Shape, Epilogue>;
};

}  // namespace transformer_kernels::cuda::ampere
