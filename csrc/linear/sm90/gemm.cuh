// SPDX-License-Identifier: MIT
// Hopper's GEMM, with an epilogue on the tile that is still in registers:
//
//   out = epilogue(a b)        a is rows x terms, b terms x cols; 16-bit operands, float32 sums
//
//   Shape      the tile of a warpgroup, and the order of the operands (shape.cuh)
//   Loader     brings the operands (tma_loader.cuh)
//   Tiles      the work items: tiles, or tiles of parts of the terms (shape.cuh)
//   Epilogue   a chain of parts, whose tensors pass through shared memory (staged_writer.cuh), or a
//              struct that stores sums from their registers (direct_writer.cuh); all are in
//              cuda/epilogues.cuh
//
// It is persistent: one CTA an SM, three warpgroups.
//
//   warpgroup 0   warp 0 loads stages of a and b into a ring; warp 1 loads the tensors that an
//                 epilogue reads: a tile ahead, or half a tile ahead where they are two; warps 2
//                 and 3 load the rows of a stage that an index names (grouped_loader.cuh)
//   warpgroups    take tiles of kRows x kCols in turn: products, then the epilogue, which runs
//   1 and 2       while the other multiplies
//
//   1:  | products | epilogue   | products | epilogue   |
//   2:             | products | epilogue   | products | epilogue   |
#pragma once

#include "core/cuda/hopper.cuh"
#include "core/cuda/sm90/accumulator.cuh"
#include "core/cuda/sm90/pipeline.cuh"
#include "core/cuda/sm90/turn.cuh"
#include "linear/sm90/staged_writer.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kGemmThreads = 384;

// threadIdx.x and gridDim.x, read again at each call: neither they nor what is computed from them
// takes registers meanwhile.
__device__ __forceinline__ int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
__device__ __forceinline__ int grid_size() {
  int size;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(size));
  return size;
}

// A producer's thread and a consumer's in each of the two warpgroups share these.
inline constexpr int kRegisters = 504;

template <class Loader>
consteval int registers_of() {
  if constexpr (requires { Loader::kRegisters; }) return Loader::kRegisters;
  return 24;
}

// How many threads of the producers' last two warps bring rows by cp.async: all, or none.
template <class Loader>
consteval int gather_threads_of() {
  if constexpr (requires { Loader::kGatherThreads; }) return Loader::kGatherThreads;
  return 0;
}

// The parameters and the shared memory of a kernel.
template <class T, class Shape, class Loader, class Tiles, class Epilogue>
struct Gemm {
  using Writer = typename WriterOf<T, Shape, Epilogue>::Type;

  struct Parameters {
    Loader loader;
    Tiles tiles;
    typename Writer::Parameters results;
  };

  // Stages take the shared memory that the epilogue leaves.
  static constexpr int kSharedBytes = 227 * 1024;
  static constexpr int kStages =
      (kSharedBytes - static_cast<int>(sizeof(typename Writer::Storage))) /
      (Shape::kStageBytes + static_cast<int>(sizeof(PipelineBarriers<1>)));

  struct alignas(1024) Storage {
    unsigned char stages[kStages][Shape::kStageBytes];
    typename Writer::Storage results;
    PipelineBarriers<kStages> barriers;
  };
  static_assert(sizeof(Storage) <= kSharedBytes);
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A consumer warpgroup: multiplies tiles and runs their epilogue.
template <class T, class Shape, class Loader, class Tiles, class Writer, class GemmPipeline>
class GemmConsumer {
 public:
  __device__ __forceinline__ GemmConsumer(const Tiles& tiles, Writer writer, GemmPipeline pipeline,
                                          int group, AccumulatorThread own)
      : tiles_(tiles),
        writer_(writer),
        pipeline_(pipeline),
        turn_(group),
        group_(group),
        own_(own) {}

  __device__ __forceinline__ void run() {
    const int first = blockIdx.x;
    const int step = gridDim.x;
    const int last = tiles_.count() - 1;
    const int count = first <= last ? (last - first) / step + 1 : 0;
    const auto skip = [&](int i) {
      if (i < count) pipeline_.skip(tiles_[first + i * step].blocks);
    };
    if (group_ == 1) skip(0);
    for (int i = group_; i < count; i += 2) {
      const auto unit = tiles_[first + i * step];
      writer_.touch(unit.place.col * Shape::kOutCols);
      multiply(unit.blocks);
      writer_.write(sums_, unit, i / 2);
      skip(i + 1);
    }
    if (count % 2 == group_) turn_.wait();
    writer_.finish();
  }

 private:
  __device__ __forceinline__ void release(std::uint32_t empty) const {
    if (own_.lane == 0) mbarrier_arrive(empty);
  }

  // One group of products is always on its way while the next stage is waited for. Without the turn
  // a warpgroup could take a stage's last round for the one that it waits for: parities are equal.
  __device__ __forceinline__ void multiply(int blocks) {
    constexpr int kStepOfA = Shape::kMajorA == Major::kK ? 2 : 128;  // 16 terms, in 16 bytes
    constexpr int kStepOfB = Shape::kMajorB == Major::kK ? 2 : 128;
    constexpr int kBand = 64 * kSwizzleRow / 16;
    turn_.wait();
    if constexpr (requires { Tiles::kMayLackTerms; }) {
      if (blocks == 0) return turn_.pass();
    }
    std::uint32_t previous = 0;
    for (int block = 0; block < blocks; ++block) {
      const std::uint32_t data = __shfl_sync(~0u, pipeline_.data(), 0);
      const std::uint64_t a = matrix_descriptor(data, leading(Shape::kMajorA));
      const std::uint64_t b = matrix_descriptor(data + Shape::kBytesOfA, leading(Shape::kMajorB));
      pipeline_.wait();
      if constexpr (gather_threads_of<Loader>() > 0) fence_async_shared();
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < Shape::kBlock / 16; ++k) {
#pragma unroll
        for (int band = 0; band < Shape::kBands; ++band) {
          wgmma<T, Shape::kMajorA, Shape::kMajorB>(sums_[band], a + band * kBand + k * kStepOfA,
                                                   b + k * kStepOfB, (block | k) != 0);
        }
      }
      wgmma_commit();
      if (block > 0) {
        wgmma_wait<1>();
        release(previous);
      }
      previous = pipeline_.empty();
      pipeline_.advance();
    }
    turn_.pass();
    wgmma_wait<0>();
#pragma unroll
    for (auto& band : sums_) pin(band);
    release(previous);
  }
  static constexpr std::uint32_t leading(Major major) {
    return major == Major::kK ? 16 : 64 * kSwizzleRow;
  }

  const Tiles& tiles_;
  Writer writer_;
  GemmPipeline pipeline_;
  Turn<2, 1> turn_;
  int group_;
  AccumulatorThread own_;
  typename Shape::Sums sums_;
};

#endif  // sm_90a

template <class T, class Shape, class Loader, class Tiles, class Epilogue>
__global__ void __launch_bounds__(kGemmThreads, 1)
    gemm_kernel(const __grid_constant__
                typename Gemm<T, Shape, Loader, Tiles, Epilogue>::Parameters p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Kernel = Gemm<T, Shape, Loader, Tiles, Epilogue>;
  using Writer = typename Kernel::Writer;
  constexpr bool kGathers = gather_threads_of<Loader>() > 0;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& storage = *reinterpret_cast<typename Kernel::Storage*>(memory);
  Pipeline<Kernel::kStages, Shape::kStageBytes> pipeline(storage.stages, storage.barriers);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    if constexpr (kGathers) {
      for (int i = 0; i < Kernel::kStages; ++i) {
        mbarrier_init(shared_address(&storage.barriers.full[i]), 1 + gather_threads_of<Loader>());
        mbarrier_init(shared_address(&storage.barriers.empty[i]), kGemmWarps);
      }
    } else {
      pipeline.init(kGemmWarps);
    }
    Writer::init(storage.results);
    fence_mbarrier_init();
    p.loader.prefetch();
  }
  __syncthreads();
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (group == 0) {
    give_registers<registers_of<Loader>()>();
    if (threadIdx.x == 0) {
      for (int i = blockIdx.x; i < p.tiles.count(); i += gridDim.x) {
        p.loader.template load<Shape>(pipeline, p.tiles[i]);
      }
    }
    if (threadIdx.x == 32) Writer::load(p.results, p.tiles, storage.results);
    if constexpr (kGathers) {
      if (threadIdx.x >= 64) {
        for (int i = blockIdx.x; i < p.tiles.count(); i += grid_size()) {
          p.loader.template gather<Shape>(pipeline, p.tiles[i], thread_index() - 64);
        }
      }
    }
  } else {
    take_registers<(kRegisters - registers_of<Loader>()) / 2>();
    const AccumulatorThread own{
        __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % kGemmWarps, 0),
        static_cast<int>(threadIdx.x) % 32};
    const Writer writer(p.results, storage.results, group - 1, own);
    GemmConsumer<T, Shape, Loader, Tiles, Writer, decltype(pipeline)>(p.tiles, writer, pipeline,
                                                                      group - 1, own)
        .run();
  }
#endif
}

}  // namespace transformer_kernels::cuda
