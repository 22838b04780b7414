// SPDX-License-Identifier: MIT
// Epilogues of products on tensor cores whose results leave through shared memory: chains of parts.
// Chain<AddBias<>, Keep<>, Activate<Gelu>> is f(z), and keeps z = sum + bias. Engines run them
// (sm90/staged_writer.cuh, sm80/chunk_writer.cuh).
//
// A part is a struct whose data are its arguments and whose apply() is its arithmetic. What else it
// has, it says by these names (epilogues.cuh):
//
//   kReads, kKeeps              how many tensors like the result it reads, and writes
//   kKeepsOnDemand              what it keeps may be unwanted
//   kResults                    how many results it leaves, where that is not one
//   kSumsColumns                its `partial`, if not null, gets sums of the first result's columns
//   kDotsRows                   it adds to `f.dots`; its `dots`, if not null, gets each tile's sums
//   Columns, columns<T>(at)     what it needs of the columns of a chunk, brought once for all bands
//   touch<T>(col, cols, lane)   brings what columns() will read to L1, before the products
//   apply(fragment[, columns])
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/cuda/hopper.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/sm90/accumulator.cuh"
#include "linear/cuda/units.cuh"

namespace transformer_kernels::cuda {

// The epilogue goes over a tile in chunks of 64 rows; each warp owns 16 of them.
inline constexpr int kChunkCols = 32;
inline constexpr int kChunkRowBytes = kChunkCols * 2;
inline constexpr int kChunkBytes = 64 * kChunkRowBytes;

// The columns of a chunk, as a lane sees them: of each eight it has two neighbours.
struct ChunkColumns {
  static constexpr int kEights = kChunkCols / 8;

  int first;
  int cols;  // of the result
  AccumulatorThread own;
  int group = 0;  // of the rows

  // The first column of two; past the last column that is even, the last two.
  __device__ __forceinline__ int two(int eight) const {
    return min(first + own.col(eight), cols - 2);
  }
};

// 16 rows and 16 columns of a chunk. A lane holds eight numbers of each value; number e is in
// row(e) of the result, and of eight(e) it is the lane's column e % 2. Cells::put(cell, words)
// writes a fragment to shared memory: what the address `cell` means to a lane is the engine's.
template <class T, int kProducts_, class Cells>
struct EpilogueFragment {
  static constexpr int kProducts = kProducts_;

  float (*v)[8];     // values: sums of the products, then the numbers of all tensors that are read
  float (*read)[8];  // of these, those that the part itself reads
  std::uint32_t kept;   // the cell of shared memory of the first tensor that it keeps
  GemmExtent extent;    // of the result
  MatrixOrigin origin;  // in it
  AccumulatorThread own;
  int sixteen;            // of the chunk
  float* dots = nullptr;  // sums over the columns of row(0) and row(2), so far

  __device__ __forceinline__ int row(int e) const {
    return origin.row + own.lane / 4 + 8 * (e / 2 % 2);
  }
  // In the columns of the chunk.
  __device__ __forceinline__ int eight(int e) const { return 2 * sixteen + e / 4; }

  // Rounds value `i` to T.
  __device__ __forceinline__ void round(int i) const {
    std::uint32_t words[4];
    narrow(v[i], words);
    widen(words, v[i]);
  }
  // Writes numbers, rounded, to tensor `i` of those that the part keeps.
  __device__ __forceinline__ void keep(int i, const float (&numbers)[8]) const {
    std::uint32_t words[4];
    narrow(numbers, words);
    Cells::put(kept + i * kChunkBytes, words);
  }

  static __device__ __forceinline__ void narrow(const float (&numbers)[8],
                                                std::uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = narrow_word<T>(numbers + 2 * i);
  }
  static __device__ __forceinline__ void widen(const std::uint32_t (&words)[4],
                                               float (&numbers)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) widen_word<T>(words[i], numbers + 2 * i);
  }
};

// A part's columns(), where it has them.
template <class Part>
struct ColumnsOf {};
template <class Part>
requires requires { typename Part::Columns; }
struct ColumnsOf<Part> {
  typename Part::Columns own;
};

// The numbers that a part says of itself, or those of a part that says nothing.
template <class Part>
consteval int reads_of() {
  if constexpr (requires { Part::kReads; }) return Part::kReads;
  return 0;
}
template <class Part>
consteval int keeps_of() {
  if constexpr (requires { Part::kKeeps; }) return Part::kKeeps;
  return 0;
}
template <class Part>
consteval int results_of() {
  if constexpr (requires { Part::kResults; }) return Part::kResults;
  return 1;
}

// Runs parts in their order. The tensors that it reads and keeps are in that order too.
template <class... Parts>
struct Chain : Parts... {
  static constexpr int kReads = (0 + ... + reads_of<Parts>());
  static constexpr int kKeeps = (0 + ... + keeps_of<Parts>());
  static constexpr int kResults = std::max({1, results_of<Parts>()...});
  static constexpr bool kKeepsOnDemand = (false || ... || requires { Parts::kKeepsOnDemand; });
  static constexpr bool kSumsColumns = (false || ... || requires { Parts::kSumsColumns; });
  static constexpr bool kDotsRows = (false || ... || requires { Parts::kDotsRows; });

  struct Columns : ColumnsOf<Parts>... {};

  template <class T>
  __device__ __forceinline__ void touch(int col, int cols, int lane) const {
    const auto touch_of = [&]<class Part>(const Part& part) {
      if constexpr (requires { part.template touch<T>(col, cols, lane); }) {
        part.template touch<T>(col, cols, lane);
      }
    };
    (touch_of(static_cast<const Parts&>(*this)), ...);
  }

  template <class T>
  __device__ __forceinline__ Columns columns(const ChunkColumns& at) const {
    return {columns_of<T, Parts>(at)...};
  }

  template <class F>
  __device__ __forceinline__ void apply(const F& fragment, const Columns& columns) const {
    (apply_part<Parts>(fragment, columns), ...);
  }

 private:
  template <class T, class Part>
  __device__ __forceinline__ ColumnsOf<Part> columns_of(const ChunkColumns& at) const {
    if constexpr (requires { typename Part::Columns; }) {
      return {Part::template columns<T>(at)};
    } else {
      return {};
    }
  }

  template <class Part, class F>
  __device__ __forceinline__ void apply_part(F fragment, const Columns& columns) const {
    fragment.read += before<Part>(reads_of<Parts>()...);
    fragment.kept += before<Part>(keeps_of<Parts>()...) * kChunkBytes;
    if constexpr (requires { typename Part::Columns; }) {
      Part::apply(fragment, static_cast<const ColumnsOf<Part>&>(columns).own);
    } else {
      Part::apply(fragment);
    }
  }

  // The sum of the numbers of the parts before this one.
  template <class Part, class... Numbers>
  static consteval int before(Numbers... numbers) {
    int sum = 0;
    bool is_before = true;
    ((is_before = is_before && !std::is_same_v<Part, Parts>, sum += is_before ? numbers : 0), ...);
    return sum;
  }
};

}  // namespace transformer_kernels::cuda
