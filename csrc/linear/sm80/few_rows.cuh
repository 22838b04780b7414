// SPDX-License-Identifier: MIT
// Products of few rows, as in text generation, with their epilogue:
//
//   out = epilogue(x w)        x at most 16 rows; w terms x columns, of 16, 8 or 4 bits a number
//
// They take as long as w takes to come from memory, once. On the tensor cores the columns of w are
// the rows of the left operand, and the rows of x the columns of the right one.
//
//   CTA    strips of Weight::kCols columns of out over all terms; one strip after the other, with
//          the next one's numbers under way before this one is done
//   warp   every n-th chunk of terms, so that a CTA's warps read on along its lines together; their
//          sums are added up in shared memory, in the order of the warps
//   lane   4 g + t: kLaneTerms terms of a chunk, from kLaneTerms t on, of columns g and g + 8 of
//          each tile of 16
//
// The terms of an mma may stand in any order that both operands share: a lane takes contiguous
// terms, where mma's own order has them apart.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/reduce.cuh"
#include "linear/cuda/epilogue.cuh"
#include "linear/cuda/packed_numbers.cuh"
#include "linear/cuda/scale.cuh"
#include "linear/quantized_problem.h"

namespace transformer_kernels::cuda {

// ------------------------------------------------------------------ weights

// Prefetches into L2, which stays coherent with memory, whichever kernel writes it.
__device__ __forceinline__ void prefetch_global(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Read once, so past L1; zeros, with nothing read, where not `valid`.
__device__ __forceinline__ void load_words(const void* from, bool valid,
                                           std::uint32_t (&words)[4]) {
  const uint4 v = valid ? load_global_in_order(from) : uint4{};
  words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
}
__device__ __forceinline__ void load_words(const void* from, bool valid,
                                           std::uint32_t (&words)[2]) {
  const uint2 v = valid ? load_global_8_in_order(from) : uint2{};
  words[0] = v.x, words[1] = v.y;
}

struct FewRowsSizes {
  int cols;
  int chunks;
};

// The lane that has the sum of a column: column g or g + 8 of tile `tile`.
struct FewRowsPlace {
  int tile;
  int group;  // g
  int half;
};

// Weights whose terms lie together in lines of a column each.
template <class T_, class Numbers, int kLineBytes, int kTiles_>
struct Lines {
  using T = T_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kCols = 16 * kTiles;
  static constexpr int kWords = kLineBytes / 4;  // of a line that a lane loads for a chunk
  static constexpr int kLaneTerms = kWords * Numbers::kPerWord;
  static constexpr int kLoads = 2 * kTiles;  // of a lane for a chunk
  static constexpr bool kScaled = Numbers::kScaled;

  struct Source {
    const void* data;
    int step_bytes;  // from line to line
  };
  using Chunk = std::uint32_t[kLoads][kWords];

  const Source& source;
  const FewRowsSizes& sizes;
  int lane;

  // Lines beyond the last one repeat it: their results are not stored.
  __device__ __forceinline__ int line(int col, int i) const {
    return min(col + lane / 4 + 8 * i, sizes.cols - 1);
  }
  // The address of one load of a lane, for line i of the columns from `col` on.
  __device__ __forceinline__ const std::byte* address(int col, int number, int i) const {
    const std::byte* const first = advanced(source.data, 4 * number + lane % 4, kLineBytes);
    return advanced(first, line(col, i), source.step_bytes);
  }

  static __device__ __forceinline__ void operand(const Chunk& chunk, int tile, int step,
                                                 std::uint32_t (&a)[4]) {
    std::uint32_t first[2], second[2];
    Numbers::step(chunk[2 * tile], step, first);
    Numbers::step(chunk[2 * tile + 1], step, second);
    a[0] = first[0];
    a[1] = second[0];
    a[2] = first[1];
    a[3] = second[1];
  }
  template <int kXWords>
  static __device__ __forceinline__ void arrange(std::uint32_t (&x)[kXWords]) {
    Numbers::arrange(x);
  }
  static __device__ __forceinline__ FewRowsPlace place(int col) {
    return {col / 16, col % 8, col / 8 % 2};
  }
};

// 16-bit weights whose columns lie together in lines of a term each: a lane has four columns, from
// 4 g on, of which two are those of a tile. Words of two columns become words of two terms.
template <class T_>
struct Columns {
  using T = T_;
  static constexpr int kTiles = 2;
  static constexpr int kCols = 32;
  static constexpr int kLaneTerms = 4;
  static constexpr int kLoads = kLaneTerms;
  static constexpr bool kScaled = false;

  struct Source {
    const void* data;
    std::int64_t step_bytes;
  };
  using Chunk = std::uint32_t[kLoads][2];

  const Source& source;
  const FewRowsSizes& sizes;
  int lane;

  // Columns beyond the last four repeat these: their results are not stored.
  __device__ __forceinline__ const std::byte* address(int col, int number, int i) const {
    const int term = (4 * number + lane % 4) * kLaneTerms + i;
    const int first = min(col + lane / 4 * 4, sizes.cols - 4);
    return static_cast<const std::byte*>(source.data) + term * source.step_bytes + first * 2;
  }

  static __device__ __forceinline__ void operand(const Chunk& chunk, int tile, int,
                                                 std::uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t low = chunk[2 * i][tile];
      const std::uint32_t high = chunk[2 * i + 1][tile];
      a[2 * i] = __byte_perm(low, high, 0x5410);
      a[2 * i + 1] = __byte_perm(low, high, 0x7632);
    }
  }
  template <int kXWords>
  static __device__ __forceinline__ void arrange(std::uint32_t (&)[kXWords]) {}
  static __device__ __forceinline__ FewRowsPlace place(int col) {
    return {col % 4 / 2, col / 4, col % 2};
  }
};

// ------------------------------------------------------------------ the kernel

// Warps of a CTA, at most; and registers of a thread, which decide for how many warps a processor
// has room.
inline constexpr int kFewRowsWarps = 16;
template <class Weight, int kXTiles>
inline constexpr int kFewRowsRegisters = Weight::kScaled || kXTiles == 2 ? 128 : 64;
template <class Weight, int kXTiles>
inline constexpr int kFewRowsResident = 65536 / kWarp / kFewRowsRegisters<Weight, kXTiles>;

template <class Weight, int kXTiles>
inline constexpr int kFewRowsSums = 4 * kXTiles* Weight::kTiles;  // of a lane

// Sums of all warps, for two strips.
template <class Weight, int kXTiles>
constexpr std::size_t few_rows_sum_bytes(int warps) {
  return std::size_t{2} * warps * kWarp * kFewRowsSums<Weight, kXTiles> * sizeof(float);
}

template <class Weight, int kXTiles>
class FewRows {
  using T = typename Weight::T;
  using Sums = float[Weight::kTiles][kXTiles][4];
  static constexpr int kChunkTerms = 4 * Weight::kLaneTerms;
  static constexpr int kXWords = Weight::kLaneTerms / 2;
  static constexpr int kPiece = kXWords < 4 ? kXWords : 4;  // words of x that are loaded at once
  static constexpr int kPieces = kXWords / kPiece;
  static constexpr int kDepth =
      kFewRowsRegisters<Weight, kXTiles> / static_cast<int>(sizeof(typename Weight::Chunk));

  // A chunk of the weight; of its four lines' scales, as they lie in memory, that of line t.
  struct Slot {
    typename Weight::Chunk chunk;
    std::uint32_t scale;
  };

 public:
  __device__ __forceinline__ FewRows(const Product& p, const FewRowsSizes& sizes,
                                     const typename Weight::Source& source,
                                     const GroupScales& scales, float* shared)
      : p_(p),
        sizes_(sizes),
        scales_(scales),
        shared_(shared),
        warps_(static_cast<int>(blockDim.x) / kWarp),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        weight_{source, sizes, lane_} {
    // Rows beyond the last one repeat it: their results are not stored.
#pragma unroll
    for (int i = 0; i < kXTiles; ++i) {
      const int row = min(8 * i + lane_ / 4, static_cast<int>(p.rows) - 1);
      x_[i] = static_cast<const T*>(p.a.data) + row * p.a.row_step + lane_ % 4 * Weight::kLaneTerms;
    }
  }

  // Prefetches the first round into L2; memory that another kernel still writes also comes from
  // there.
  __device__ __forceinline__ void prefetch() const {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int number = warp_ + i * warps_;
      if (!has(number)) continue;
#pragma unroll
      for (int j = 0; j < Weight::kLoads; ++j) {
        prefetch_global(weight_.address(first_col(), number, j));
      }
    }
  }

  // All warps run equally many rounds of kDepth chunks, whether or not theirs are there.
  __device__ __forceinline__ void run() {
    const int step = static_cast<int>(gridDim.x) * Weight::kCols;
    const int round = warps_ * kDepth;
    Slot slots[kDepth];
#pragma unroll
    for (int i = 0; i < kDepth; ++i) load(slots[i], first_col(), warp_ + i * warps_);
    for (int col = first_col(); col < sizes_.cols; col += step) {
      Sums sums = {};
      for (int first = 0; first < sizes_.chunks; first += round) {
        const bool ends = first + round >= sizes_.chunks;
        const int next_col = ends ? col + step : col;
        const int next = ends ? 0 : first + round;
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          const int own = warp_ + i * warps_;
          if (first + own < sizes_.chunks) multiply(slots[i], first + own, sums);
          load(slots[i], next_col, next + own);
        }
      }
      add_up(sums, col, col / step % 2);
    }
  }

 private:
  // A lane's terms are all there, or none of them; of groups all lanes' are.
  __device__ __forceinline__ bool has(int chunk) const {
    if constexpr (Weight::kScaled) return chunk < sizes_.chunks;
    return std::int64_t{chunk} * kChunkTerms + lane_ % 4 * Weight::kLaneTerms < p_.terms;
  }

  __device__ __forceinline__ int first_col() const {
    return static_cast<int>(blockIdx.x) * Weight::kCols;
  }

  __device__ __forceinline__ void load(Slot& slot, int col, int number) const {
    const bool valid = col < sizes_.cols && has(number);
#pragma unroll
    for (int i = 0; i < Weight::kLoads; ++i) {
      load_words(weight_.address(col, number, i), valid, slot.chunk[i]);
    }
    if constexpr (Weight::kScaled) {
      static_assert(Weight::kLoads == 4);  // a line for each t
      if (!valid) return;
      const std::byte* const scales =
          advanced(scales_.data, scales_.group_of(number), scales_.bytes);
      slot.scale = scale_bits(advanced(scales, weight_.line(col, lane_ % 4), scales_.step_bytes),
                              scales_.dtype);
    }
  }

  // Sums of integers are scaled when their group is through: a chunk is of one group.
  __device__ __forceinline__ void multiply(const Slot& slot, int number, Sums& sums) const {
    if constexpr (Weight::kScaled) {
      Sums own = {};
      add_products(slot.chunk, number, own);
      const float of_line = scale_of(slot.scale, scales_.dtype);
#pragma unroll
      for (int i = 0; i < 2 * Weight::kTiles; ++i) {
        const float scale = __shfl_sync(kAllLanes, of_line, i, 4);
#pragma unroll
        for (int x = 0; x < kXTiles; ++x) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int at = i % 2 * 2 + e;
            float& sum = sums[i / 2][x][at];
            sum = fmaf(scale, own[i / 2][x][at], sum);
          }
        }
      }
    } else {
      add_products(slot.chunk, number, sums);
    }
  }

  __device__ __forceinline__ void add_products(const typename Weight::Chunk& chunk, int number,
                                               Sums& sums) const {
    const bool valid = Weight::kScaled || has(number);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      std::uint32_t x[kXTiles][kPiece];
#pragma unroll
      for (int i = 0; i < kXTiles; ++i) {
        const std::byte* const first = advanced(x_[i], number, 2 * kChunkTerms);
        load_x(first + piece * (4 * kPiece), valid, x[i]);
        Weight::arrange(x[i]);
      }
#pragma unroll
      for (int word = 0; word < kPiece; word += 2) {
#pragma unroll
        for (int tile = 0; tile < Weight::kTiles; ++tile) {
          std::uint32_t a[4];
          Weight::operand(chunk, tile, (piece * kPiece + word) / 2, a);
#pragma unroll
          for (int i = 0; i < kXTiles; ++i) {
            mma_m16n8k16<T>(sums[tile][i], a, x[i][word], x[i][word + 1]);
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void load_x(const std::byte* from, bool valid,
                                                std::uint32_t (&words)[kPiece]) {
    if constexpr (kPiece == 4) {
      const uint4 v = valid ? *reinterpret_cast<const uint4*>(from) : uint4{};
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
      const uint2 v = valid ? *reinterpret_cast<const uint2*>(from) : uint2{};
      words[0] = v.x, words[1] = v.y;
    }
  }

  // Adds up the warps' sums of the strip from `first_col` on, in their order. The next strip's lie
  // elsewhere in shared memory, so that one barrier a strip will do.
  __device__ __forceinline__ void add_up(const Sums& sums, int first_col, int half) const {
    const int threads = static_cast<int>(blockDim.x);
    float* const shared = shared_ + half * (kFewRowsSums<Weight, kXTiles> * threads);
    const auto at = [threads](int tile, int x, int e) {
      return ((tile * kXTiles + x) * 4 + e) * threads;
    };
#pragma unroll
    for (int tile = 0; tile < Weight::kTiles; ++tile) {
#pragma unroll
      for (int x = 0; x < kXTiles; ++x) {
#pragma unroll
        for (int e = 0; e < 4; ++e) shared[at(tile, x, e) + threadIdx.x] = sums[tile][x][e];
      }
    }
    __syncthreads();
    const int count = Weight::kCols * static_cast<int>(p_.rows);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const int col = i % Weight::kCols;
      const int row = i / Weight::kCols;
      if (first_col + col >= sizes_.cols) continue;
      const FewRowsPlace place = Weight::place(col);
      const float* const own = shared + at(place.tile, row / 8, 2 * place.half + row % 2) +
                               4 * place.group + row % 8 / 2;
      float sum = 0;
      for (int warp = 0; warp < warps_; ++warp) sum += own[warp * kWarp];
      epilogue<T>(p_, row, first_col + col, sum);
    }
  }

  const Product& p_;
  const FewRowsSizes& sizes_;
  const GroupScales& scales_;
  float* shared_;
  int warps_;
  int warp_;
  int lane_;
  Weight weight_;
  const T* x_[kXTiles];
};

template <class Weight, int kXTiles>
__global__ void __maxnreg__((kFewRowsRegisters<Weight, kXTiles>))
    few_rows_kernel(const Product p, const FewRowsSizes sizes, const typename Weight::Source source,
                    const GroupScales scales) {
  extern __shared__ float few_rows_shared[];
  FewRows<Weight, kXTiles> rows(p, sizes, source, scales, few_rows_shared);
#if __CUDA_ARCH__ >= 900
  rows.prefetch();
#endif
  follow_previous_kernel();
  rows.run();
}

}  // namespace transformer_kernels::cuda
