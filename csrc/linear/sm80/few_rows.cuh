// SPDX-License-Identifier: MIT
// Products of few rows, as when text is generated, with what follows them:
//
//   out = epilogue(x w)        x at most 16 rows; w terms x columns, of 16, 8 or 4 bits a number
//
// They take as long as w takes to come from memory, once. On tensor cores the columns of w are the
// rows of the left operand, the rows of x the columns of the right one.
//
//   CTA    Weight::kCols columns of out, all terms
//   warp   every n-th chunk of terms, so that a CTA's warps read on along its lines together; their
//          sums are added up in shared memory, in their order
//   lane   4 g + t: kLaneTerms terms of a chunk, from kLaneTerms t on, of columns g and g + 8 of a
//          tile of 16
//
// What mma sums over may stand in any order that is that of both operands: a lane takes the terms
// that lie together, where mma's own order has them apart.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/cuda/direct_row.cuh"
#include "core/cuda/mma.cuh"
#include "linear/epilogue.cuh"
#include "linear/quantized_problem.h"
#include "linear/scale.cuh"

namespace transformer_kernels::cuda {

// ------------------------------------------------------------------ numbers

// Of a line's words, in which its terms stand one after the other: step s of a lane is its terms
// 4 s .. 4 s + 3, a pair in each of the words that mma takes. arrange() brings a lane's terms of x
// into the order of these pairs. Where kExcess is not 0 all numbers are larger by those that it has
// in its halves; what that makes of a sum is taken off it.
template <class T>
struct SixteenBits {
  static constexpr int kPerWord = 2;
  static constexpr bool kScaled = false;
  static constexpr std::uint32_t kExcess = 0;

  static __device__ __forceinline__ void step(const std::uint32_t* line, int s,
                                              std::uint32_t (&words)[2]) {
    words[0] = line[2 * s];
    words[1] = line[2 * s + 1];
  }
  template <int kWords>
  static __device__ __forceinline__ void arrange(std::uint32_t (&)[kWords]) {}
};

// Integers become floats of 16 bits by their place behind a leading one: in bfloat16 the last four
// bits of 0x4300 (128) and more count as 1 to 8, in float16 the last eight of 0x6400 (1024).
template <class T>
struct Magic;
template <>
struct Magic<BFloat16> {
  static constexpr std::uint32_t kOne = 0x43004300u;
  using Two = __nv_bfloat162;
};
template <>
struct Magic<Half> {
  static constexpr std::uint32_t kOne = 0x64006400u;
  using Two = __half2;
};

// a & mask ^ other, in the one instruction that it is: of two constants one has to be a register.
__device__ __forceinline__ std::uint32_t and_xor(std::uint32_t a, std::uint32_t mask,
                                                 std::uint32_t other) {
  std::uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(mask), "r"(other));
  return d;
}

// Exact wherever T holds the difference.
template <class T>
__device__ __forceinline__ std::uint32_t subtract_two(std::uint32_t a, std::uint32_t b) {
  using Two = typename Magic<T>::Two;
  const Two two = __hsub2(*reinterpret_cast<const Two*>(&a), *reinterpret_cast<const Two*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&two);
}

template <class T>
struct EightBits {
  static constexpr int kPerWord = 4;
  static constexpr bool kScaled = true;
  static constexpr std::uint32_t kExcess = 0;

  // Bytes in the low halves of two numbers of 16 bits. bfloat16 has room for seven of the bits: the
  // eighth, which is worth -128, doubles what is subtracted.
  static __device__ __forceinline__ std::uint32_t convert(std::uint32_t bytes) {
    constexpr std::uint32_t kOne = Magic<T>::kOne;
    if constexpr (std::is_same_v<T, BFloat16>) {
      return subtract_two<T>(and_xor(bytes, 0x007f007fu, kOne), and_xor(bytes, 0x00800080u, kOne));
    } else {
      return subtract_two<T>(bytes ^ (0x00800080u | kOne), 0x00800080u | kOne);
    }
  }
  static __device__ __forceinline__ void step(const std::uint32_t* line, int s,
                                              std::uint32_t (&words)[2]) {
    words[0] = convert(__byte_perm(line[s], 0, 0x4140));
    words[1] = convert(__byte_perm(line[s], 0, 0x4342));
  }
  template <int kWords>
  static __device__ __forceinline__ void arrange(std::uint32_t (&)[kWords]) {}
};

template <class T>
struct FourBits {
  static constexpr int kPerWord = 8;
  static constexpr bool kScaled = true;
  static constexpr std::uint32_t kZero = Magic<T>::kOne | 0x00080008u;
  // 136 is small enough beside the numbers that sums of float32 hold both; 1032 is not.
  static constexpr std::uint32_t kExcess = std::is_same_v<T, BFloat16> ? kZero : 0;

  // A mask takes nibbles i and i + 4 of a word at once, so these are a pair.
  static __device__ __forceinline__ std::uint32_t pair(std::uint32_t word, int i) {
    const std::uint32_t large = and_xor(word >> 4 * i, 0x000f000fu, kZero);
    return kExcess != 0 ? large : subtract_two<T>(large, kZero);
  }
  static __device__ __forceinline__ void step(const std::uint32_t* line, int s,
                                              std::uint32_t (&words)[2]) {
    words[0] = pair(line[s / 2], s % 2 * 2);
    words[1] = pair(line[s / 2], s % 2 * 2 + 1);
  }
  template <int kWords>
  static __device__ __forceinline__ void arrange(std::uint32_t (&x)[kWords]) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const std::uint32_t low[2] = {x[i], x[i + 1]};
      const std::uint32_t high[2] = {x[i + 2], x[i + 3]};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        x[i + 2 * j] = __byte_perm(low[j], high[j], 0x5410);
        x[i + 2 * j + 1] = __byte_perm(low[j], high[j], 0x7632);
      }
    }
  }
};

// ------------------------------------------------------------------ weights

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

// Which lane's sum is that of a column: of tile `tile`, column g or g + 8 of it.
struct FewRowsPlace {
  int tile;
  int group;  // g
  int half;
};

// Weights whose terms lie together in lines of a column each.
template <class T_, class Numbers, int kLineBytes>
struct Lines {
  using T = T_;
  static constexpr int kTiles = 1;
  static constexpr int kCols = 16;
  static constexpr int kWords = kLineBytes / 4;  // of a line that a lane loads for a chunk
  static constexpr int kLaneTerms = kWords * Numbers::kPerWord;
  static constexpr int kSteps = kLaneTerms / 4;
  static constexpr int kAtOnce = 32 / kLineBytes;  // chunks that are on their way
  static constexpr bool kScaled = Numbers::kScaled;
  static constexpr std::uint32_t kExcess = Numbers::kExcess;

  struct Source {
    const void* data;
    std::int64_t step_bytes;  // from line to line
  };
  struct Chunk {
    std::uint32_t words[2][kWords];
  };

  const std::byte* line[2];

  // Lines beyond the last one are the last one: nobody stores what comes of them.
  __device__ __forceinline__ Lines(const Source& source, int first_col, int cols, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int col = min(first_col + 8 * i + lane / 4, cols - 1);
      line[i] = static_cast<const std::byte*>(source.data) + col * source.step_bytes +
                lane % 4 * kLineBytes;
    }
  }

  __device__ __forceinline__ void load(Chunk& chunk, int number, bool valid) const {
    const std::int64_t offset = std::int64_t{number} * (4 * kLineBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) load_words(line[i] + offset, valid, chunk.words[i]);
  }

  static __device__ __forceinline__ void operand(const Chunk& chunk, int, int step,
                                                 std::uint32_t (&a)[4]) {
    std::uint32_t first[2], second[2];
    Numbers::step(chunk.words[0], step, first);
    Numbers::step(chunk.words[1], step, second);
    a[0] = first[0];
    a[1] = second[0];
    a[2] = first[1];
    a[3] = second[1];
  }
  template <int kXWords>
  static __device__ __forceinline__ void arrange(std::uint32_t (&x)[kXWords]) {
    Numbers::arrange(x);
  }
  static __device__ __forceinline__ FewRowsPlace place(int col) { return {0, col % 8, col / 8}; }
};

// 16-bit weights whose columns lie together in lines of a term each: a lane has four columns, from
// 4 g on, of which two are those of a tile. Words of two columns become words of two terms.
template <class T_>
struct Columns {
  using T = T_;
  static constexpr int kTiles = 2;
  static constexpr int kCols = 32;
  static constexpr int kLaneTerms = 4;
  static constexpr int kSteps = 1;
  static constexpr int kAtOnce = 2;
  static constexpr bool kScaled = false;
  static constexpr std::uint32_t kExcess = 0;

  struct Source {
    const void* data;
    std::int64_t step_bytes;
  };
  struct Chunk {
    std::uint32_t words[kLaneTerms][2];
  };

  const std::byte* first_line;
  std::int64_t step;

  __device__ __forceinline__ Columns(const Source& source, int first_col, int cols, int lane)
      : step(source.step_bytes) {
    const int col = min(first_col + lane / 4 * 4, cols - 4);
    first_line =
        static_cast<const std::byte*>(source.data) + col * 2 + lane % 4 * kLaneTerms * step;
  }

  __device__ __forceinline__ void load(Chunk& chunk, int number, bool valid) const {
    const std::byte* const from = first_line + number * (4 * kLaneTerms * step);
#pragma unroll
    for (int i = 0; i < kLaneTerms; ++i) load_words(from + i * step, valid, chunk.words[i]);
  }

  static __device__ __forceinline__ void operand(const Chunk& chunk, int tile, int,
                                                 std::uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t low = chunk.words[2 * i][tile];
      const std::uint32_t high = chunk.words[2 * i + 1][tile];
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

// What is null where the weight has no scales.
struct FewRowsScales {
  const void* data;
  std::int64_t step;
  DType dtype;
  int groups;                       // of a line
  std::uint32_t groups_of_a_chunk;  // times 2^32, rounded up; 0: a chunk is a group

  __device__ __forceinline__ int group_of(int chunk) const {
    return groups_of_a_chunk == 0 ? chunk : static_cast<int>(__umulhi(chunk, groups_of_a_chunk));
  }
};

template <class Weight>
__host__ __device__ constexpr int scale_pitch(int groups) {
  return Weight::kScaled ? groups | 1 : 0;  // odd: lines that are read together lie in other banks
}
template <class Weight, int kXTiles>
constexpr std::size_t few_rows_shared_bytes(int warps, int groups) {
  const int sums = warps * Weight::kTiles * kXTiles * 4 * kWarp;
  return (Weight::kCols * scale_pitch<Weight>(groups) + sums) * sizeof(float);
}

template <class Weight, int kXTiles>
class FewRows {
  using T = typename Weight::T;
  using Sums = float[Weight::kTiles][kXTiles][4];
  static constexpr int kChunkTerms = 4 * Weight::kLaneTerms;
  static constexpr int kXWords = Weight::kLaneTerms / 2;

 public:
  __device__ __forceinline__ FewRows(const Product& p, const typename Weight::Source& source,
                                     const FewRowsScales& scales, float* shared)
      : p_(p),
        scales_(scales),
        shared_(shared),
        first_col_(static_cast<int>(blockIdx.x) * Weight::kCols),
        chunks_(static_cast<int>((p.terms + kChunkTerms - 1) / kChunkTerms)),
        warps_(static_cast<int>(blockDim.x) / kWarp),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        weight_(source, first_col_, static_cast<int>(p.cols), lane_) {
    // Rows beyond the last one are the last one: nobody stores what comes of them.
#pragma unroll
    for (int i = 0; i < kXTiles; ++i) {
      const int row = min(8 * i + lane_ / 4, static_cast<int>(p.rows) - 1);
      x_[i] = static_cast<const T*>(p.a.data) + row * p.a.row_step + lane_ % 4 * Weight::kLaneTerms;
    }
  }

  __device__ __forceinline__ void run() {
    typename Weight::Chunk next[Weight::kAtOnce];
    load(warp_, next);
    if constexpr (Weight::kScaled) stage_scales();
    const int stride = warps_ * Weight::kAtOnce;
    for (int number = warp_; number < chunks_; number += stride) {
      typename Weight::Chunk now[Weight::kAtOnce];
#pragma unroll
      for (int i = 0; i < Weight::kAtOnce; ++i) now[i] = next[i];
      load(number + stride, next);
#pragma unroll
      for (int i = 0; i < Weight::kAtOnce; ++i) {
        const int chunk = number + i * warps_;
        // Chunks that are not there are zeros; scaled, they cost more than the branch.
        if (!Weight::kScaled || chunk < chunks_) multiply(now[i], chunk);
      }
    }
    store();
  }

 private:
  // A lane's terms are all there, or none of them; of groups all lanes' are.
  __device__ __forceinline__ bool has(int chunk) const {
    if constexpr (Weight::kScaled) return chunk < chunks_;
    return std::int64_t{chunk} * kChunkTerms + lane_ % 4 * Weight::kLaneTerms < p_.terms;
  }

  __device__ __forceinline__ void load(int first,
                                       typename Weight::Chunk (&chunks)[Weight::kAtOnce]) const {
#pragma unroll
    for (int i = 0; i < Weight::kAtOnce; ++i) {
      const int number = first + i * warps_;
      weight_.load(chunks[i], number, has(number));
    }
  }

  __device__ __forceinline__ void stage_scales() const {
    const int groups = scales_.groups;
    for (int i = threadIdx.x; i < Weight::kCols * groups; i += blockDim.x) {
      const int col = i / groups;
      const int group = i - col * groups;
      const std::int64_t line = min(first_col_ + col, static_cast<int>(p_.cols) - 1);
      shared_[col * scale_pitch<Weight>(groups) + group] =
          scale_at(scales_.data, scales_.dtype, line * scales_.step + group);
    }
    __syncthreads();
  }

  // Sums of integers are scaled when their group is through: a chunk is of one group.
  __device__ __forceinline__ void multiply(const typename Weight::Chunk& chunk, int number) {
    if constexpr (Weight::kScaled) {
      Sums own = {};
      float excess[kXTiles][4] = {};
      add_products(chunk, number, own, excess);
      const float* const scales = shared_ + scales_.group_of(number);
#pragma unroll
      for (int i = 0; i < 2 * Weight::kTiles; ++i) {
        const float scale = scales[(8 * i + lane_ / 4) * scale_pitch<Weight>(scales_.groups)];
#pragma unroll
        for (int x = 0; x < kXTiles; ++x) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int at = i % 2 * 2 + e;
            float& sum = sums_[i / 2][x][at];
            sum = fmaf(scale, own[i / 2][x][at] - excess[x][at], sum);
          }
        }
      }
    } else {
      float none[kXTiles][4];
      add_products(chunk, number, sums_, none);
    }
  }

  __device__ __forceinline__ void add_products(const typename Weight::Chunk& chunk, int number,
                                               Sums& sums, float (&excess)[kXTiles][4]) const {
    std::uint32_t x[kXTiles][kXWords];
    const bool valid = Weight::kScaled || has(number);
#pragma unroll
    for (int i = 0; i < kXTiles; ++i) {
      load_x(x_[i] + std::int64_t{number} * kChunkTerms, valid, x[i]);
      Weight::arrange(x[i]);
    }
#pragma unroll
    for (int step = 0; step < Weight::kSteps; ++step) {
      if constexpr (Weight::kExcess != 0) {
        constexpr std::uint32_t kEach[4] = {Weight::kExcess, Weight::kExcess, Weight::kExcess,
                                            Weight::kExcess};
#pragma unroll
        for (int i = 0; i < kXTiles; ++i) {
          mma_m16n8k16<T>(excess[i], kEach, x[i][2 * step], x[i][2 * step + 1]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < Weight::kTiles; ++tile) {
        std::uint32_t a[4];
        Weight::operand(chunk, tile, step, a);
#pragma unroll
        for (int i = 0; i < kXTiles; ++i) {
          mma_m16n8k16<T>(sums[tile][i], a, x[i][2 * step], x[i][2 * step + 1]);
        }
      }
    }
  }

  static __device__ __forceinline__ void load_x(const T* from, bool valid,
                                                std::uint32_t (&words)[kXWords]) {
    constexpr int kPiece = kXWords < 4 ? kXWords : 4;
#pragma unroll
    for (int i = 0; i < kXWords; i += kPiece) {
      if constexpr (kPiece == 4) {
        const uint4 v = valid ? *reinterpret_cast<const uint4*>(from + 2 * i) : uint4{};
        words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
      } else {
        const uint2 v = valid ? *reinterpret_cast<const uint2*>(from + 2 * i) : uint2{};
        words[i] = v.x, words[i + 1] = v.y;
      }
    }
  }

  // Adds up the warps' sums, in their order.
  __device__ __forceinline__ void store() {
    float* const sums = shared_ + Weight::kCols * scale_pitch<Weight>(scales_.groups);
    const auto at = [](int tile, int x, int e, int lane) {
      return ((tile * kXTiles + x) * 4 + e) * kWarp + lane;
    };
    constexpr int kOfWarp = Weight::kTiles * kXTiles * 4 * kWarp;
#pragma unroll
    for (int tile = 0; tile < Weight::kTiles; ++tile) {
#pragma unroll
      for (int x = 0; x < kXTiles; ++x) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[warp_ * kOfWarp + at(tile, x, e, lane_)] = sums_[tile][x][e];
        }
      }
    }
    __syncthreads();
    const int count = Weight::kCols * static_cast<int>(p_.rows);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const int col = i % Weight::kCols;
      const int row = i / Weight::kCols;
      if (first_col_ + col >= p_.cols) continue;
      const FewRowsPlace place = Weight::place(col);
      const float* const own =
          sums + at(place.tile, row / 8, 2 * place.half + row % 2, 4 * place.group + row % 8 / 2);
      float sum = 0;
      for (int warp = 0; warp < warps_; ++warp) sum += own[warp * kOfWarp];
      epilogue<T>(p_, row, first_col_ + col, sum);
    }
  }

  const Product& p_;
  const FewRowsScales& scales_;
  float* shared_;  // scales, then sums
  int first_col_;
  int chunks_;
  int warps_;
  int warp_;
  int lane_;
  Weight weight_;
  const T* x_[kXTiles];
  Sums sums_ = {};
};

// The most warps of a CTA, and the CTAs of so many that a processor has room for. Scaled sums need
// registers for two of each.
template <class Weight>
inline constexpr int kFewRowsWarps = Weight::kScaled ? 8 : 16;
template <class Weight, int kXTiles>
inline constexpr int kFewRowsCtas = (Weight::kScaled ? 4 : 3) - kXTiles;

template <class Weight, int kXTiles>
__global__ void __launch_bounds__(kFewRowsWarps<Weight>* kWarp, kFewRowsCtas<Weight, kXTiles>)
    few_rows_kernel(const Product p, const typename Weight::Source source,
                    const FewRowsScales scales) {
  extern __shared__ float few_rows_shared[];
  follow_previous_kernel();
  FewRows<Weight, kXTiles>(p, source, scales, few_rows_shared).run();
}

}  // namespace transformer_kernels::cuda
