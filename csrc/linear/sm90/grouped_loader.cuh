// SPDX-License-Identifier: MIT
// The loaders of Hopper's GEMM (gemm.cuh) for groups of rows.
#pragma once

#include "core/cuda/hopper.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/sm90/ragged.cuh"
#include "core/cuda/sm90/swizzle.cuh"
#include "linear/cuda/units.cuh"
#include "linear/sm90/shape.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kGatherThreads = 64;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Arrives on an mbarrier, which counts this thread, once its cp_async()s so far have arrived.
__device__ __forceinline__ void cp_async_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

#endif  // sm_90

// Rows that cp.async brings: row i is row index[i], or without an index row i; one out of range is
// a row of zeros. A row is 16-byte aligned, and so is its end.
struct GatheredRows {
  static constexpr unsigned kNowhere = ~0u;

  const char* data;
  const std::int32_t* index;  // may be null
  unsigned step;              // from one row to the next, in 16 bytes
  unsigned rows;
  int cols;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

  // A warp brings four of each eight of kCount rows; its lanes know where these lie, in 16 bytes
  // from `data`.
  template <int kCount>
  struct Places {
    unsigned at[kCount / kGatherThreads];
  };
  template <int kCount>
  __device__ __forceinline__ Places<kCount> places(int row, int left, int thread) const {
    Places<kCount> places;
#pragma unroll
    for (int i = 0; i < kCount / kGatherThreads; ++i) {
      const int lane = 32 * i + thread % 32;
      const int own = lane / 4 * 8 + thread / 32 * 4 + lane % 4;
      const bool exists = own < left;
      const unsigned at = !exists ? 0 : index == nullptr ? row + own : __ldg(index + row + own);
      places.at[i] = exists && at < rows ? at * step : kNowhere;
    }
    return places;
  }

  // Eight lanes bring 128 bytes of a row, piece by piece: those of columns [col, col + 64).
  template <int kCount>
  __device__ __forceinline__ void load(std::uint32_t to, const Places<kCount>& places, int col,
                                       int thread) const {
    constexpr int kAtOnce = 4;  // rows
    const int piece = thread % 8;
    const int within = thread % 32 / 8;
    const bool has_piece = col + 8 * piece < cols;
    const char* const own = data + 2 * (col + 8 * piece);
    to = swizzled<kSwizzleRow>(to, thread / 32 * 4 + within, piece);
#pragma unroll
    for (int i = 0; i < kCount / kGatherThreads; ++i) {
#pragma unroll 2
      for (int four = 0; four < 32; four += kAtOnce) {
        const unsigned at = __shfl_sync(~0u, places.at[i], four + within);
        const bool exists = has_piece && at != kNowhere;
        cp_async<16>(to, own + std::int64_t{exists ? at : 0} * 16, exists);
        to += 2 * kAtOnce * kSwizzleRow;
      }
    }
  }

#endif  // sm_90
};

// Rows of a that lie together, or that an index names; b is a group's own matrix.
template <int kProducts, bool kGathers>
struct GroupedLoader;

// The operand b of both.
template <int kProducts>
struct GroupedWeights {
  CUtensorMap b[kProducts];  // terms or columns, the other of them, groups

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

  template <class Shape>
  __device__ __forceinline__ void load_b(std::uint32_t stage, const GroupedUnit& unit, int term,
                                         std::uint32_t full) const {
    static_assert(Shape::kProducts == kProducts);
    const int col = unit.place.col * Shape::kOutCols;
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const std::uint32_t to = stage + Shape::kBytesOfA + i * (Shape::kBytesOfB / kProducts);
      if constexpr (Shape::kMajorB == Major::kK) {
        cube_load(to, b[i], {term, col, unit.group}, full);
      } else {
#pragma unroll
        for (int box = 0; box < Shape::kBoxesOfB; ++box) {
          cube_load(to + box * 64 * kSwizzleRow, b[i], {col + 64 * box, term, unit.group}, full);
        }
      }
    }
  }

#endif  // sm_90
};

template <int kProducts>
struct GroupedLoader<kProducts, false> : GroupedWeights<kProducts> {
  CUtensorMap a;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

  __device__ __forceinline__ void prefetch() const {
    prefetch_tensor_map(a);
    prefetch_tensor_map(this->b[0]);
  }

  // One thread. Rows past the group's end come too, and nobody stores what becomes of them.
  template <class Shape, class Pipeline>
  __device__ __forceinline__ void load(Pipeline& pipeline, const GroupedUnit& unit) const {
    for (int block = 0; block < unit.blocks; ++block) {
      const int term = block * Shape::kBlock;
      pipeline.acquire();
      pipeline.commit(Shape::kStageBytes);
      tensor_load(pipeline.data(), a, MatrixOrigin{term, unit.row}, pipeline.full());
      this->template load_b<Shape>(pipeline.data(), unit, term, pipeline.full());
      pipeline.advance();
    }
  }

#endif  // sm_90
};

template <int kProducts>
struct GroupedLoader<kProducts, true> : GroupedWeights<kProducts> {
  static constexpr int kGatherThreads = cuda::kGatherThreads;

  GatheredRows a;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

  __device__ __forceinline__ void prefetch() const { prefetch_tensor_map(this->b[0]); }

  // One thread.
  template <class Shape, class Pipeline>
  __device__ __forceinline__ void load(Pipeline& pipeline, const GroupedUnit& unit) const {
    for (int block = 0; block < unit.blocks; ++block) {
      pipeline.acquire();
      pipeline.commit(Shape::kBytesOfB);
      this->template load_b<Shape>(pipeline.data(), unit, block * Shape::kBlock, pipeline.full());
      pipeline.advance();
    }
  }

  // kGatherThreads threads.
  template <class Shape, class Pipeline>
  __device__ __forceinline__ void gather(Pipeline& pipeline, const GroupedUnit& unit,
                                         int thread) const {
    const auto places = a.template places<Shape::kRows>(unit.row, unit.rows, thread);
#pragma unroll 1
    for (int block = 0; block < unit.blocks; ++block) {
      pipeline.acquire();
      a.load(pipeline.data(), places, block * Shape::kBlock, thread);
      cp_async_arrive(pipeline.full());
      pipeline.advance();
    }
  }

#endif  // sm_90
};

enum class Gathered { kNone, kA, kB };

// a and b are rows of groups, which are the terms. What lies past a group's end is 0.
template <Gathered kGathered>
struct GroupedTermsLoader {
  static constexpr int kGatherThreads = kGathered == Gathered::kNone ? 0 : cuda::kGatherThreads;
  static constexpr int kRegisters = kGathered == Gathered::kNone ? 24 : 40;

  CUtensorMap a;  // ragged; of the one that is gathered there is none
  CUtensorMap b;
  GatheredRows gathered;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

  __device__ __forceinline__ void prefetch() const {
    prefetch_tensor_map(kGathered == Gathered::kA ? b : a);
  }

  // One thread.
  template <class Shape, class Pipeline>
  __device__ __forceinline__ void load(Pipeline& pipeline, const GroupedUnit& unit) const {
    constexpr int kBytes = (kGathered == Gathered::kA ? 0 : Shape::kBytesOfA) +
                           (kGathered == Gathered::kB ? 0 : Shape::kBytesOfB);
    for (int block = 0; block < unit.blocks; ++block) {
      const int term = block * Shape::kBlock;
      const RaggedRows at = ragged_rows<Shape::kBlock>(unit.row + term, unit.rows - term);
      pipeline.acquire();
      pipeline.commit(kBytes);
      if constexpr (kGathered != Gathered::kA) {
        load_boxes<Shape::kRows / 64>(pipeline.data(), a, unit.place.row * Shape::kRows, at,
                                      pipeline.full());
      }
      if constexpr (kGathered != Gathered::kB) {
        load_boxes<Shape::kBoxesOfB>(pipeline.data() + Shape::kBytesOfA, b,
                                     unit.place.col * Shape::kCols, at, pipeline.full());
      }
      pipeline.advance();
    }
  }

  // kGatherThreads threads.
  template <class Shape, class Pipeline>
  __device__ __forceinline__ void gather(Pipeline& pipeline, const GroupedUnit& unit,
                                         int thread) const {
    constexpr bool kIsA = kGathered == Gathered::kA;
    constexpr int kBoxes = kIsA ? Shape::kRows / 64 : Shape::kBoxesOfB;
    const int first = kIsA ? unit.place.row * Shape::kRows : unit.place.col * Shape::kCols;
#pragma unroll 1
    for (int block = 0; block < unit.blocks; ++block) {
      const int term = block * Shape::kBlock;
      const auto places = gathered.places<Shape::kBlock>(unit.row + term, unit.rows - term, thread);
      pipeline.acquire();
      const std::uint32_t to = pipeline.data() + (kIsA ? 0 : Shape::kBytesOfA);
#pragma unroll 1
      for (int box = 0; box < kBoxes; ++box) {
        gathered.load(to + box * 64 * kSwizzleRow, places, first + 64 * box, thread);
      }
      cp_async_arrive(pipeline.full());
      pipeline.advance();
    }
  }

 private:
  template <int kBoxes>
  static __device__ __forceinline__ void load_boxes(std::uint32_t to, const CUtensorMap& map,
                                                    int first, RaggedRows at, std::uint32_t full) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      cube_load(to + box * 64 * kSwizzleRow, map, {first + 64 * box, at.within, at.place}, full);
    }
  }

#endif  // sm_90
};

}  // namespace transformer_kernels::cuda
