// SPDX-License-Identifier: MIT
// A warp's unit of 16 keys on its way from memory to the tensor cores: straight into registers, in
// pieces of 16 bytes, with no shared memory between.
//
// Products are transposed, S^T = K Q^T and O^T = V^T P^T, so that keys or columns are the 16 rows
// of mma.m16n8k16 and rows of the group its 8 columns: nothing is padded to 16. What mma sums over
// may come in any order that both operands have, and so may its rows:
//
//   lane 4 g + t    of keys g / 2 + 4 (g % 2) and that + 8: pieces t, t + 4, ..
//                   of values t, t + 4, t + 8, t + 12: pieces g, g + 8, ..
//
// A row of S^T is then a key, and after a transpose of 8x8 blocks (movmatrix) a lane has the
// weights of the values that it holds.
#pragma once

#include <type_traits>

#include "attention/decode/common/cta.cuh"
#include "core/cuda/mma.cuh"

namespace transformer_kernels::cuda {

// T is what is multiplied; C what the cache holds, T or integers; kDim covers D and Dv; a CTA takes
// 8 * kTiles rows.
template <class T, class C, int kDim_, int kTiles_, int kCtas_>
struct CacheTile {
  using Number = T;
  using Cached = C;
  static constexpr int kDim = kDim_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kCtas = kCtas_;  // of an SM
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kSteps = kDim / 16;
  static constexpr bool kScaled = std::is_same_v<C, std::int8_t>;
  static constexpr bool kOfOut = !kScaled;
  static constexpr int kOfPiece = 16 / static_cast<int>(sizeof(C));
  static constexpr int kPieces = kDim / kOfPiece;
  static constexpr int kKeyPieces = kPieces / 4;    // of a lane and key
  static constexpr int kValuePieces = kPieces / 8;  // of a lane and value
  // Whether registers hold both keys and values, so that they are asked for a unit ahead.
  static constexpr bool kAhead = kPieces <= 16;
  static_assert(kPieces % 8 == 0);
};

// A lane's part of a unit.
template <class Tile>
struct UnitOfLane {
  using C = typename Tile::Cached;
  uint4 key[2][Tile::kKeyPieces];
  uint4 value[4][Tile::kValuePieces];
  float key_scale[2];
  float value_scale[2];  // of the lane's keys

  // The first of the two keys; the other one is 8 behind it.
  static __device__ __forceinline__ int first_key(int lane) {
    const int g = lane / 4;
    return g / 2 + 4 * (g % 2);
  }

  // The first row of a unit.
  static __device__ __forceinline__ const char* row_of(const CacheRows& cache, UnitPlace place,
                                                       int head) {
    const std::int64_t at = place.page * cache.page_stride + place.row * cache.row_stride +
                            static_cast<std::int64_t>(head) * cache.head_stride;
    return static_cast<const char*>(cache.data) + at * static_cast<int>(sizeof(C));
  }

  // Rows [from, to) of the unit are tokens; what is not is not read, and 0.
  __device__ __forceinline__ void load_keys(const KvCacheProblem& p, UnitPlace place, int head,
                                            int from, int to, int lane) {
    const int first = first_key(lane);
    const int piece = lane % 4;
    const int pieces = static_cast<int>(p.dim) / Tile::kOfPiece;
    const std::int64_t step = p.k_cache.row_stride * static_cast<int>(sizeof(C));
    const char* const row = row_of(p.k_cache, place, head) + first * step + piece * 16;
    if (to - from == kCacheUnit && pieces == Tile::kPieces) {
#pragma unroll
      for (int j = 0; j < Tile::kKeyPieces; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) key[r][j] = load_global_once(row + 8 * r * step + 64 * j);
      }
      return;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = first + 8 * r;
#pragma unroll
      for (int j = 0; j < Tile::kKeyPieces; ++j) {
        key[r][j] = {};
        if (at >= from && at < to && piece + 4 * j < pieces) {
          key[r][j] = load_global_once(row + 8 * r * step + 64 * j);
        }
      }
    }
  }

  __device__ __forceinline__ void load_values(const KvCacheProblem& p, UnitPlace place, int head,
                                              int from, int to, int lane) {
    const int first = lane % 4;
    const int piece = lane / 4;
    const int pieces = static_cast<int>(p.value_dim) / Tile::kOfPiece;
    const std::int64_t step = p.v_cache.row_stride * static_cast<int>(sizeof(C));
    const char* const row = row_of(p.v_cache, place, head) + first * step + piece * 16;
    if (to - from == kCacheUnit && pieces == Tile::kPieces) {
#pragma unroll
      for (int h = 0; h < Tile::kValuePieces; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) value[i][h] = load_global_once(row + 4 * i * step + 128 * h);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = first + 4 * i;
#pragma unroll
        for (int h = 0; h < Tile::kValuePieces; ++h) {
          value[i][h] = {};
          if (at >= from && at < to && piece + 8 * h < pieces) {
            value[i][h] = load_global_once(row + 4 * i * step + 128 * h);
          }
        }
      }
    }
    if constexpr (Tile::kScaled) load_scales(p, place, head, from, to, lane);
  }

 private:
  __device__ __forceinline__ void load_scales(const KvCacheProblem& p, UnitPlace place, int head,
                                              int from, int to, int lane) {
    const auto load = [&](const CacheRows& scale, int row) {
      return static_cast<const float*>(
          scale.data)[place.page * scale.page_stride + (place.row + row) * scale.row_stride +
                      static_cast<std::int64_t>(head) * scale.head_stride];
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = first_key(lane) + 8 * r;
      const bool exists = at >= from && at < to;
      key_scale[r] = exists ? load(p.k_scale, at) : 0;
      value_scale[r] = exists ? load(p.v_scale, at) : 0;
    }
  }
};

__device__ __forceinline__ std::uint32_t word_of(const uint4& piece, int index) {
  return index == 0 ? piece.x : (index == 1 ? piece.y : (index == 2 ? piece.z : piece.w));
}

// Two of a word's four integers, as float16: the bits of 1024 + 128 + n, and that number less.
template <bool kUpper>
__device__ __forceinline__ std::uint32_t halves_of(std::uint32_t integers) {
  const std::uint32_t flipped = integers ^ 0x80808080u;
  const std::uint32_t raised = __byte_perm(flipped, 0x64646464u, kUpper ? 0x4342 : 0x4140);
  const __half2 pair =
      __hsub2(reinterpret_cast<const __half2&>(raised), __half2half2(__ushort_as_half(0x6480)));
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// The left operand of step `step` of S^T: 16 keys by 16 columns.
template <class Tile>
__device__ __forceinline__ void keys_of_step(const UnitOfLane<Tile>& unit, int step,
                                             std::uint32_t (&a)[4]) {
  if constexpr (Tile::kScaled) {
    const std::uint32_t low = word_of(unit.key[0][step / 4], step % 4);
    const std::uint32_t high = word_of(unit.key[1][step / 4], step % 4);
    a[0] = halves_of<false>(low);
    a[1] = halves_of<false>(high);
    a[2] = halves_of<true>(low);
    a[3] = halves_of<true>(high);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = word_of(unit.key[i % 2][step / 2], step % 2 * 2 + i / 2);
    }
  }
}

// The first of the four columns that a lane multiplies in step `step` of S^T.
template <class Tile>
__device__ __forceinline__ int column_of_step(int step, int lane) {
  constexpr int kStepsOfPiece = Tile::kOfPiece / 4;
  return Tile::kOfPiece * (lane % 4 + 4 * (step / kStepsOfPiece)) + 4 * (step % kStepsOfPiece);
}

// The left operand of step `step` of O^T: columns by 16 keys. Its rows g and g + 8 are columns
// column_of_sum() + 2 (step % 2) and the next one.
template <class Tile>
__device__ __forceinline__ void values_of_step(const UnitOfLane<Tile>& unit, int step,
                                               std::uint32_t (&a)[4]) {
  constexpr int kStepsOfPiece = Tile::kOfPiece / 2;
  const int h = step / kStepsOfPiece;
  const int within = step % kStepsOfPiece;
  const auto word = [&](int i) {
    return word_of(unit.value[i][h], Tile::kScaled ? within / 2 : within);
  };
  if constexpr (Tile::kScaled) {
    const int selector = within % 2 != 0 ? 0x7362 : 0x5140;
    const std::uint32_t low = __byte_perm(word(0), word(1), selector);
    const std::uint32_t high = __byte_perm(word(2), word(3), selector);
    a[0] = halves_of<false>(low);
    a[1] = halves_of<true>(low);
    a[2] = halves_of<false>(high);
    a[3] = halves_of<true>(high);
  } else {
    a[0] = __byte_perm(word(0), word(1), 0x5410);
    a[1] = __byte_perm(word(0), word(1), 0x7632);
    a[2] = __byte_perm(word(2), word(3), 0x5410);
    a[3] = __byte_perm(word(2), word(3), 0x7632);
  }
}

// The first of the four columns of out whose sums a lane has after steps `step` and `step` + 1; the
// step is even.
template <class Tile>
__device__ __forceinline__ int column_of_sum(int step, int lane) {
  constexpr int kStepsOfPiece = Tile::kOfPiece / 2;
  return Tile::kOfPiece * (lane / 4 + 8 * (step / kStepsOfPiece)) + 2 * (step % kStepsOfPiece);
}

}  // namespace transformer_kernels::cuda
