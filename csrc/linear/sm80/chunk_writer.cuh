// SPDX-License-Identifier: MIT
// Runs a chain (cuda/chain.cuh) on a tile that is still in registers, and sends its results through
// shared memory in packs of 16 bytes.
//
// Each warp goes over its part of the tile in chunks of 64 rows and 32 columns: it brings what the
// chain reads to slots of shared memory, and writes what leaves the chain to slots, results over
// what was read. Warps share nothing, so there is no barrier of the CTA.
#pragma once

#include <algorithm>

#include "core/cuda/sm90/accumulator.cuh"
#include "linear/cuda/column_totals.cuh"
#include "linear/problem.h"
#include "linear/sm80/direct_writer.cuh"

namespace transformer_kernels::cuda::ampere {

// A lane's cell is its word in the first of the four matrices of a fragment.
struct WordCells {
  static __device__ __forceinline__ void put(std::uint32_t cell, const std::uint32_t (&words)[4]) {
    constexpr int kEightRows = 8 * kChunkRowBytes;  // after which pieces are permuted alike
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t at = (i / 2 == 0 ? cell : cell ^ 16) + i % 2 * kEightRows;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(words[i]) : "memory");
    }
  }
};

template <class T, class Shape, class Chain>
class ChunkWriter {
  static constexpr int kRows = Shape::kWarpRows;
  static constexpr int kBands = kRows / 16;
  static constexpr int kSixteens = kChunkCols / 16;
  static constexpr int kValues = Shape::kProducts + Chain::kReads;
  static constexpr int kShared = std::max(Chain::kReads, Chain::kResults);
  static constexpr int kSlots = kShared + Chain::kKeeps;
  static_assert(kRows * kChunkRowBytes == kChunkBytes && Shape::kWarpOutCols % kChunkCols == 0);
  static_assert(Chain::kResults <= kValues);
  using Columns = typename Chain::Columns;
  using F = EpilogueFragment<T, Shape::kProducts, WordCells>;
  using Rows = SharedRows<T, kChunkCols>;

 public:
  // Tensors are like the result; null ones are not wanted.
  struct Parameters {
    Chain chain;
    GemmExtent extent;
    Matrix reads[Chain::kReads > 0 ? Chain::kReads : 1];
    Matrix writes[Chain::kResults + Chain::kKeeps];  // the results, then what is kept
  };
  struct Storage {
    unsigned char slots[Shape::kThreads / kWarp][kSlots][kChunkBytes];
  };

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

  __device__ __forceinline__ ChunkWriter(const Parameters& p, Storage& storage,
                                         const GemmUnit& unit)
      : p_(p),
        slots_(shared_address(storage.slots[Lane().warp])),
        first_(origin_of_warp<Shape>(unit.place)) {
    p_.chain.template touch<T>(first_.col, p_.extent.cols, own_.lane);
#pragma unroll
    for (int i = 0; i < Chain::kReads; ++i) bring_to_l2(p_.reads[i]);
  }

  __device__ __forceinline__ void write(typename Shape::Sums& sums) const {
#pragma unroll
    for (int c = 0; c < Shape::kWarpOutCols / kChunkCols; ++c) {
      const MatrixOrigin chunk{first_.col + c * kChunkCols, first_.row};
      read(chunk);
      const Columns columns =
          p_.chain.template columns<T>(ChunkColumns{chunk.col, p_.extent.cols, own_});
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
#pragma unroll
        for (int i = 0; i < kSixteens; ++i) {
          apply(sums.at[band] + c * kChunkCols / 8 + 2 * i, columns, chunk, band, i);
        }
      }
      __syncwarp();
      if constexpr (Chain::kSumsColumns) sum_columns_of(chunk);
      store(chunk);
      __syncwarp();
    }
  }

 private:
  static constexpr int kPieceCols = 16 / static_cast<int>(sizeof(T));

  __device__ __forceinline__ std::uint32_t slot(int i) const { return slots_ + i * kChunkBytes; }
  __device__ __forceinline__ std::uint32_t kept_slot(int i) const { return slot(kShared + i); }

  // A lane's row of 16 columns of a band of a slot, as ldmatrix takes it.
  __device__ __forceinline__ std::uint32_t row_of_lane(std::uint32_t slot, int band,
                                                       int sixteen) const {
    return slot + Rows::offset(16 * band + own_.lane % 16, 2 * sixteen + own_.lane / 16);
  }
  // Its cell there.
  __device__ __forceinline__ std::uint32_t cell(std::uint32_t slot, int band, int sixteen) const {
    return slot + Rows::offset(16 * band + own_.lane / 4, 2 * sixteen) + own_.lane % 4 * 4;
  }

  // body(address in a slot, column and row of the result) for each pack of a chunk that lies in the
  // result. Rows of a chunk are whole packs, because those of the result are.
  template <class Body>
  __device__ __forceinline__ void for_each_pack(MatrixOrigin chunk, Body&& body) const {
    const int piece = own_.lane % Rows::kPieces;
    const int col = chunk.col + piece * kPieceCols;
    if (col >= p_.extent.cols) return;
#pragma unroll
    for (int i = 0; i < kRows; i += kWarp / Rows::kPieces) {
      const int row = own_.lane / Rows::kPieces + i;
      if (chunk.row + row < p_.extent.rows) {
        body(Rows::offset(row, piece), MatrixOrigin{col, chunk.row + row});
      }
    }
  }
  static __device__ __forceinline__ T* element(const Matrix& matrix, MatrixOrigin at) {
    return static_cast<T*>(matrix.data) + at.row * matrix.row_step + at.col;
  }

  // Brings the warp's part of a tensor to L2 under the products. A lane takes lines of 128 bytes.
  __device__ __forceinline__ void bring_to_l2(const Matrix& tensor) const {
    constexpr int kLineCols = 128 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int col = 0; col < Shape::kWarpOutCols; col += kLineCols) {
#pragma unroll
      for (int row = 0; row < kRows; row += kWarp) {
        const MatrixOrigin at{first_.col + col, first_.row + row + own_.lane};
        if (at.col < p_.extent.cols && at.row < p_.extent.rows) {
          asm volatile("prefetch.global.L2 [%0];" ::"l"(element(tensor, at)));
        }
      }
    }
  }

  // Brings the tensors that the chain reads.
  __device__ __forceinline__ void read(MatrixOrigin chunk) const {
    if constexpr (Chain::kReads > 0) {
#pragma unroll
      for (int i = 0; i < Chain::kReads; ++i) {
        for_each_pack(chunk, [&](int place, MatrixOrigin at) {
          cp_async<16>(slot(i) + place, element(p_.reads[i], at), true);
        });
      }
      cp_async_commit_group();
      cp_async_wait_group<0>();
      __syncwarp();
    }
  }

  __device__ __forceinline__ void apply(const float (*sums)[4], const Columns& columns,
                                        MatrixOrigin chunk, int band, int sixteen) const {
    float v[kValues][8];
#pragma unroll
    for (int i = 0; i < Shape::kProducts; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[i][e] = sums[i * Shape::kWarpOutCols / 8 + e / 4][e % 4];
    }
#pragma unroll
    for (int i = 0; i < Chain::kReads; ++i) {
      std::uint32_t words[4];
      ldmatrix_x4(words, row_of_lane(slot(i), band, sixteen));
      F::widen(words, v[Shape::kProducts + i]);
    }
    if constexpr (Chain::kReads > 0) __syncwarp();  // results lie over what all lanes have read
    p_.chain.apply(F{.v = v,
                     .read = v + Shape::kProducts,
                     .kept = cell(kept_slot(0), band, sixteen),
                     .extent = p_.extent,
                     .origin = {chunk.col + 16 * sixteen, chunk.row + 16 * band},
                     .own = own_,
                     .sixteen = sixteen},
                   columns);
#pragma unroll
    for (int i = 0; i < Chain::kResults; ++i) {
      std::uint32_t words[4];
      F::narrow(v[i], words);
      WordCells::put(cell(slot(i), band, sixteen), words);
    }
  }

  __device__ __forceinline__ void sum_columns_of(MatrixOrigin chunk) const {
    if (p_.chain.partial == nullptr) return;
    ColumnTotals<T> totals;
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      totals.add([&](int sixteen) { return row_of_lane(slot(0), band, sixteen); }, band == 0,
                 chunk.row + 16 * band, p_.extent.rows, own_);
    }
    totals.store(p_.chain.partial, chunk.row / kRows, chunk.col, p_.extent.cols, own_);
  }

  __device__ __forceinline__ void store(MatrixOrigin chunk) const {
    constexpr int kWrites = Chain::kResults + Chain::kKeeps;
#pragma unroll
    for (int i = 0; i < kWrites; ++i) {
      if (p_.writes[i].data == nullptr) continue;
      const std::uint32_t from = i < Chain::kResults ? slot(i) : kept_slot(i - Chain::kResults);
      for_each_pack(chunk, [&](int place, MatrixOrigin at) {
        store_global(element(p_.writes[i], at), load_shared(from + place));
      });
    }
  }

  const Parameters& p_;
  std::uint32_t slots_;
  MatrixOrigin first_;
  AccumulatorThread own_{Lane().warp, Lane().lane};

#endif  // sm_80
};

template <class T, class Shape, class... Parts>
struct WriterOf<T, Shape, Chain<Parts...>> {
  using Type = ChunkWriter<T, Shape, Chain<Parts...>>;
};

}  // namespace transformer_kernels::cuda::ampere
