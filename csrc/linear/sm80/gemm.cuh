// SPDX-License-Identifier: MIT
// The GEMM of sm_80 and later, with an epilogue on the tile that is still in registers:
//
//   out = epilogue(a b)        a is rows x terms, b terms x cols; 16-bit operands, float32 sums
//
//   Shape      the tile of a CTA, and the order of the operands (shape.cuh)
//   Tiles      the work items: tiles, or tiles of parts of the terms (cuda/units.cuh)
//   Epilogue   a chain of parts, whose tensors pass through shared memory (chunk_writer.cuh), or a
//              struct that stores sums from their registers (direct_writer.cuh); all are in
//              cuda/epilogues.cuh
//
// A CTA has one work item. All of its threads bring blocks of the operands into a ring of stages by
// cp.async; its warps multiply them by mma.sync. What a warp multiplies next is on its way from
// shared memory to registers under the products before it, across stages too.
#pragma once

#include "core/cuda/ptx.cuh"
#include "linear/sm80/chunk_writer.cuh"

namespace transformer_kernels::cuda::ampere {

template <int kProducts>
struct Operands {
  OperandMatrix a;
  OperandMatrix b[kProducts];
  int terms;
};

// The parameters and the shared memory of a kernel.
template <class T, class Shape, class Tiles, class Epilogue>
struct Gemm {
  using Writer = typename WriterOf<T, Shape, Epilogue>::Type;

  struct Parameters {
    Operands<Shape::kProducts> operands;
    Tiles tiles;
    typename Writer::Parameters results;
  };

  struct Stage {
    unsigned char a[Shape::template BlockOfA<T>::kBytes];
    unsigned char b[Shape::kProducts][Shape::template BlockOfB<T>::kBytes];
  };
  union Storage {
    Stage stages[Shape::kStages];
    typename Writer::Storage results;
  };
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Adds the products of a unit's blocks of terms to a warp's sums.
template <class T, class Shape>
class MainLoop {
  using A = typename Shape::template BlockOfA<T>;
  using B = typename Shape::template BlockOfB<T>;
  static constexpr int kProducts = Shape::kProducts;
  static constexpr int kStageBytes = A::kBytes + kProducts * B::kBytes;
  static constexpr int kAhead = Shape::kStages - 1;  // blocks on their way
  static constexpr int kSteps = Shape::kBlock / 16;
  static constexpr int kSixteens = Shape::kWarpOutCols / 16;  // of the columns of a product

 public:
  __device__ __forceinline__ MainLoop(const Operands<kProducts>& from, const GemmUnit& unit,
                                      GemmExtent extent, std::uint32_t stages)
      : a_(from.a, unit.place.row * Shape::kRows, extent.rows),
        b_{copies_of_b(from, unit, extent, std::make_integer_sequence<int, kProducts>())},
        a_reader_(Lane().warp / Shape::kWarpsAcross * Shape::kWarpRows),
        b_reader_(Lane().warp % Shape::kWarpsAcross * Shape::kWarpOutCols),
        stages_(stages),
        blocks_(unit.blocks),
        first_term_(unit.first_block * Shape::kBlock),
        terms_(from.terms) {}

  // The last block of terms, which may be only a part, goes first: the loop copies whole ones.
  __device__ __forceinline__ void run(typename Shape::Sums& sums) {
    sums.clear();
    fetch_last();
#pragma unroll
    for (int i = 1; i < kAhead; ++i) fetch(i);
    Step steps[2];
    await_block();
    read(steps[0], 0, 0);
    int stage = 0;
    for (int block = 0; block < blocks_; ++block) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        if (k == kSteps - 1) {
          await_block();
          stage = next(stage);
        }
        read(steps[(k + 1) % 2], stage, (k + 1) % kSteps);
        if (k == 0) fetch(block + kAhead);  // behind the reads: the next products wait for those
        multiply(sums, steps[k % 2]);
      }
    }
    cp_async_wait_group<0>();
    __syncthreads();  // the epilogue writes where the ring was
  }

 private:
  // The operands of a warp, of 16 terms.
  struct Step {
    std::uint32_t a[Shape::kWarpRows / 16][4];
    std::uint32_t b[kProducts][kSixteens][4];
  };
  template <int kLines, Major kMajor>
  using Copy = OperandCopy<T, kMajor, kLines, Shape::kBlock, Shape::kThreads>;
  struct CopiesOfB {
    Copy<Shape::kOutCols, Shape::kMajorB> of[kProducts];
  };

  template <int... kIndex>
  static __device__ __forceinline__ CopiesOfB copies_of_b(const Operands<kProducts>& from,
                                                          const GemmUnit& unit, GemmExtent extent,
                                                          std::integer_sequence<int, kIndex...>) {
    return {{Copy<Shape::kOutCols, Shape::kMajorB>(from.b[kIndex], unit.place.col * Shape::kOutCols,
                                                   extent.cols)...}};
  }

  static __device__ __forceinline__ int next(int stage) {
    return stage + 1 == Shape::kStages ? 0 : stage + 1;
  }

  // body(copy, place in shared memory) for each operand of the next block.
  template <class Body>
  __device__ __forceinline__ void for_each_copy(Body&& body) {
    const std::uint32_t stage = stages_ + to_ * kStageBytes;
    body(a_, stage);
#pragma unroll
    for (int i = 0; i < kProducts; ++i) body(b_.of[i], stage + A::kBytes + i * B::kBytes);
  }
  __device__ __forceinline__ void fetch_last() {
    const int term = first_term_ + (blocks_ - 1) * Shape::kBlock;
    for_each_copy(
        [&](const auto& copy, std::uint32_t to) { copy.start_part(to, term, terms_ - term); });
    to_ = next(to_);
    cp_async_commit_group();
  }
  // The `number`-th block in the order in which they are multiplied. Groups are counted: one is
  // committed even where no block is left.
  __device__ __forceinline__ void fetch(int number) {
    if (number < blocks_) {
      const int term = first_term_ + (number - 1) * Shape::kBlock;
      for_each_copy([&](const auto& copy, std::uint32_t to) { copy.start(to, term); });
    }
    to_ = next(to_);
    cp_async_commit_group();
  }
  // Waits for the oldest block, and until all warps are done with the one before it.
  static __device__ __forceinline__ void await_block() {
    cp_async_wait_group<kAhead - 1>();
    __syncthreads();
  }

  __device__ __forceinline__ void read(Step& step, int stage, int k) const {
    const std::uint32_t at = stages_ + stage * kStageBytes;
#pragma unroll
    for (int m = 0; m < Shape::kWarpRows / 16; ++m) a_reader_.read(step.a[m], at, m, k);
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
#pragma unroll
      for (int n = 0; n < kSixteens; ++n) {
        b_reader_.read(step.b[i][n], at + A::kBytes + i * B::kBytes, n, k);
      }
    }
  }

  static __device__ __forceinline__ void multiply(typename Shape::Sums& sums, const Step& step) {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
#pragma unroll
      for (int n = 0; n < kSixteens; ++n) {
        const std::uint32_t(&b)[4] = step.b[i][n];
#pragma unroll
        for (int m = 0; m < Shape::kWarpRows / 16; ++m) {
          float(*const to)[4] = sums.at[m] + 2 * (i * kSixteens + n);
          mma_m16n8k16<T>(to[0], step.a[m], b[0], b[1]);
          mma_m16n8k16<T>(to[1], step.a[m], b[2], b[3]);
        }
      }
    }
  }

  Copy<Shape::kRows, Shape::kMajorA> a_;
  CopiesOfB b_;
  OperandReader<T, Side::kLeft, Shape::kMajorA, Shape::kRows, Shape::kBlock> a_reader_;
  OperandReader<T, Side::kRight, Shape::kMajorB, Shape::kOutCols, Shape::kBlock> b_reader_;
  std::uint32_t stages_;
  int blocks_;
  int first_term_;
  int terms_;
  int to_ = 0;  // the stage of the next block
};

#endif  // sm_80

template <class T, class Shape, class Tiles, class Epilogue>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtas)
    gemm_kernel(const __grid_constant__ typename Gemm<T, Shape, Tiles, Epilogue>::Parameters p) {
#if __CUDA_ARCH__ >= 800
  using Kernel = Gemm<T, Shape, Tiles, Epilogue>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& storage = *reinterpret_cast<typename Kernel::Storage*>(memory);
#if __CUDA_ARCH__ >= 900
  let_next_kernel_start();
  wait_for_previous_kernel();
#endif
  const GemmUnit unit = p.tiles[static_cast<int>(blockIdx.x)];
  typename Kernel::Writer writer(p.results, storage.results, unit);
  typename Shape::Sums sums;
  MainLoop<T, Shape>(p.operands, unit, p.results.extent, shared_address(storage.stages)).run(sums);
  writer.write(sums);
#endif
}

}  // namespace transformer_kernels::cuda::ampere
