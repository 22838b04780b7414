// SPDX-License-Identifier: MIT
// The loader of Hopper's GEMM (gemm.cuh) whose operands are matrices that TMA reads.
#pragma once

#include "core/cuda/hopper.cuh"
#include "linear/sm90/shape.cuh"

namespace transformer_kernels::cuda {

template <int kProducts>
struct TmaLoader {
  CUtensorMap a;
  CUtensorMap b[kProducts];

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

  __device__ __forceinline__ void prefetch() const {
    prefetch_tensor_map(a);
    prefetch_tensor_map(b[0]);
  }

  // One thread. Fills a stage for each block of the unit's terms.
  template <class Shape, class Pipeline>
  __device__ __forceinline__ void load(Pipeline& pipeline, const GemmUnit& unit) const {
    static_assert(Shape::kProducts == kProducts);
    for (int block = 0; block < unit.blocks; ++block) {
      pipeline.acquire();
      pipeline.commit(Shape::kStageBytes);
      const int term = (unit.first_block + block) * Shape::kBlock;
      load_box<Shape::kMajorA, Shape::kRows>(pipeline.data(), a, term,
                                             unit.place.row * Shape::kRows, pipeline.full());
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        const std::uint32_t to =
            pipeline.data() + Shape::kBytesOfA + i * (Shape::kBytesOfB / kProducts);
        load_box<Shape::kMajorB, Shape::kOutCols>(to, b[i], term, unit.place.col * Shape::kOutCols,
                                                  pipeline.full());
      }
      pipeline.advance();
    }
  }

 private:
  // A box of 64 terms where terms are together, else boxes of 64 rows or columns by 64 terms.
  template <Major kMajor, int kExtent>
  static __device__ __forceinline__ void load_box(std::uint32_t to, const CUtensorMap& map,
                                                  int term, int first, std::uint32_t barrier) {
    if constexpr (kMajor == Major::kK) {
      tensor_load(to, map, {term, first}, barrier);
    } else {
#pragma unroll
      for (int i = 0; i < (kExtent + 63) / 64; ++i) {
        tensor_load(to + i * 64 * kSwizzleRow, map, {first + 64 * i, term}, barrier);
      }
    }
  }

#endif  // sm_90
};

}  // namespace transformer_kernels::cuda
