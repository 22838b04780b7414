// SPDX-License-Identifier: MIT
// Runs a chain (chain.cuh) on a tile that is still in registers, and sends its results through
// shared memory by TMA.
//
// It goes over chunks of 64 rows and 32 columns. Each warp owns 16 rows of a chunk: it moves them
// from registers to a slot of shared memory (slots.cuh), and from there by TMA, without a barrier
// of the warpgroup.
#pragma once

#include "core/cuda/sm90/ragged.cuh"
#include "core/cuda/sm90/swizzle.cuh"
#include "linear/cuda/column_totals.cuh"
#include "linear/sm90/direct_writer.cuh"
#include "linear/sm90/slots.cuh"

namespace transformer_kernels::cuda {

// A lane's cell is its row of a matrix, as stmatrix takes it.
struct MatrixCells {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  static __device__ __forceinline__ void put(std::uint32_t cell, const std::uint32_t (&words)[4]) {
    store_matrices(cell, words[0], words[1], words[2], words[3]);
  }
#endif
};

// The arguments of a chain, with the maps of its tensors, which are like the result.
template <class Chain>
struct StagedResults {
  static constexpr int kWrites = Chain::kResults + Chain::kKeeps;

  Chain chain;
  GemmExtent extent;
  CUtensorMap reads[Chain::kReads > 0 ? Chain::kReads : 1];
  CUtensorMap writes[kWrites];  // the results, then what is kept
  bool keeps;                   // where the chain keeps on demand
};

template <class T, class Shape, class Chain>
class StagedWriter {
  static constexpr bool kReads = Chain::kReads > 0;
  static constexpr int kValues = Shape::kProducts + Chain::kReads;
  static constexpr int kSixteens = kChunkCols / 16;
  using Slots = std::conditional_t<kReads, ReadSlots<Shape, Chain>, ResultSlots<Shape, Chain>>;
  using Columns = typename Chain::Columns;
  using F = EpilogueFragment<T, Shape::kProducts, MatrixCells>;
  static_assert(Shape::kOutCols % kChunkCols == 0 && Chain::kResults <= kValues);

 public:
  using Parameters = StagedResults<Chain>;
  using Storage = typename Slots::Storage;

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

  // One thread.
  static __device__ __forceinline__ void init(Storage& storage) { Slots::init(storage); }

  // One thread of the producers.
  template <class Tiles>
  static __device__ __forceinline__ void load(const Parameters& p, const Tiles& tiles,
                                              Storage& storage) {
    if constexpr (kReads) Slots::load(p.reads, tiles, storage);
  }

  __device__ __forceinline__ StagedWriter(const Parameters& p, Storage& storage, int group,
                                          AccumulatorThread own)
      : p_(p),
        slots_(storage, group),
        own_(own) {}

  // Before the products of a tile whose first column is `col`.
  __device__ __forceinline__ void touch(int col) const {
    p_.chain.template touch<T>(col, p_.extent.cols, own_.lane);
  }

  // `tile` counts those of this warpgroup.
  template <class Unit>
  __device__ __forceinline__ void write(const typename Shape::Sums& sums, const Unit& unit,
                                        int tile) {
    const int row = first_row<Shape>(unit);
    const int col = unit.place.col * Shape::kOutCols;
    float dots[Shape::kBands][2] = {};  // where they are wanted
#pragma unroll
    for (int c = 0; c < Shape::kOutCols / kChunkCols; ++c) {
      const int first_col = col + c * kChunkCols;
      const Columns columns =
          p_.chain.template columns<T>({first_col, p_.extent.cols, own_, group_of(unit)});
      ColumnTotals<T> totals;  // where they are wanted
#pragma unroll
      for (int band = 0; band < Shape::kBands; ++band) {
        const int chunk = c * Shape::kBands + band;
        const MatrixOrigin box{first_col, row + band * 64 + 16 * own_.warp};
        slots_.open(chunk, tile);
        apply(sums[band] + c * kChunkCols / 2, columns, box, dots[band]);
        slots_.settle(own_.lane);
        if constexpr (Chain::kSumsColumns) {
          const auto own_cell = [&](int sixteen) { return cell(slots_.result(0), sixteen); };
          if (p_.chain.partial != nullptr) {
            totals.add(own_cell, band == 0, box.row, p_.extent.rows, own_);
          }
        }
        if (own_.lane == 0) send(unit, box, chunk);
        slots_.proceed();
      }
      if constexpr (Chain::kSumsColumns) {
        if (p_.chain.partial != nullptr) {
          totals.store(p_.chain.partial, unit.place.row * kGemmWarps + own_.warp, first_col,
                       p_.extent.cols, own_);
        }
      }
    }
    if constexpr (Chain::kDotsRows) {
      if (p_.chain.dots != nullptr) store_dots(unit, row, dots);
    }
  }

  // Before the CTA ends.
  __device__ __forceinline__ void finish() const {
    if (own_.lane == 0) bulk_wait_read<0>();
  }

 private:
  // This lane's row of 16 columns of a chunk's tensor, as ldmatrix and stmatrix take it.
  __device__ __forceinline__ std::uint32_t cell(std::uint32_t tensor, int sixteen) const {
    return swizzled_16x16<kChunkRowBytes>(tensor, 16 * own_.warp, 2 * sixteen, own_.lane);
  }

  __device__ __forceinline__ void apply(const float* sums, const Columns& columns, MatrixOrigin box,
                                        float* dots) const {
    // Numbers that are read ahead take registers, as do those of columns and a second input.
    constexpr int kAhead = Chain::kReads == 1 && std::is_empty_v<Columns> ? kSixteens : 1;
#pragma unroll
    for (int first = 0; first < kSixteens; first += kAhead) {
      std::uint32_t words[kAhead][kReads ? Chain::kReads : 1][4];
      if constexpr (kReads) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
#pragma unroll
          for (int i = 0; i < Chain::kReads; ++i) {
            ldmatrix_x4(words[j][i], cell(slots_.read(i), first + j));
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) apply(first + j, sums, words[j], columns, box, dots);
    }
  }

  template <int kWords>
  __device__ __forceinline__ void apply(int sixteen, const float* sums,
                                        const std::uint32_t (&words)[kWords][4],
                                        const Columns& columns, MatrixOrigin box,
                                        float* dots) const {
    float v[kValues][8];
#pragma unroll
    for (int i = 0; i < Shape::kProducts; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[i][e] = sums[i * Shape::kOutCols / 2 + 8 * sixteen + e];
    }
#pragma unroll
    for (int i = 0; i < Chain::kReads; ++i) F::widen(words[i], v[Shape::kProducts + i]);
    p_.chain.apply(F{.v = v,
                     .read = v + Shape::kProducts,
                     .kept = cell(slots_.kept(0), sixteen),
                     .extent = p_.extent,
                     .origin = {box.col + 16 * sixteen, box.row},
                     .own = own_,
                     .sixteen = sixteen,
                     .dots = dots},
                   columns);
#pragma unroll
    for (int i = 0; i < Chain::kResults; ++i) {
      std::uint32_t result[4];
      F::narrow(v[i], result);
      MatrixCells::put(cell(slots_.result(i), sixteen), result);
    }
  }

  // The four lanes of a row add up their sums. Each tile of columns has a row of all rows' sums.
  __device__ __forceinline__ void store_dots(const GroupedUnit& unit, int row,
                                             const float (&dots)[Shape::kBands][2]) const {
#pragma unroll
    for (int band = 0; band < Shape::kBands; ++band) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float dot = dots[band][half];
        dot += __shfl_xor_sync(~0u, dot, 1);
        dot += __shfl_xor_sync(~0u, dot, 2);
        const int own_row = band * 64 + own_.row(half);
        if (own_.lane % 4 == 0 && own_row < unit.rows) {
          p_.chain.dots[std::int64_t{unit.place.col} * p_.extent.rows + row + own_row] = dot;
        }
      }
    }
  }

  // One lane stores a warp's rows.
  static __device__ __forceinline__ void store(const CUtensorMap& map, const GemmUnit&,
                                               MatrixOrigin box, std::uint32_t source) {
    tensor_store(map, box, source);
  }
  // One lane stores those of a warp's rows that are the group's.
  static __device__ __forceinline__ void store(const CUtensorMap& map, const GroupedUnit& unit,
                                               MatrixOrigin box, std::uint32_t source) {
    const int left = unit.row + unit.rows - box.row;
    if (left <= 0) return;
    const RaggedRows at = ragged_rows<16>(box.row, left);
    cube_store(map, {box.col, at.within, at.place}, source);
  }

  // One lane: this warp's rows of all that is written.
  template <class Unit>
  __device__ __forceinline__ void send(const Unit& unit, MatrixOrigin box, int chunk) const {
    const std::uint32_t rows = 16 * own_.warp * kChunkRowBytes;
#pragma unroll
    for (int i = 0; i < Chain::kResults; ++i) {
      store(p_.writes[i], unit, box, slots_.result(i) + rows);
    }
    if (!Chain::kKeepsOnDemand || p_.keeps) {
#pragma unroll
      for (int i = 0; i < Chain::kKeeps; ++i) {
        store(p_.writes[Chain::kResults + i], unit, box, slots_.kept(i) + rows);
      }
    }
    bulk_commit();
    slots_.free(chunk);
  }

  const Parameters& p_;
  Slots slots_;
  AccumulatorThread own_;

#endif  // sm_90a
};

template <class T, class Shape, class... Parts>
struct WriterOf<T, Shape, Chain<Parts...>> {
  using Type = StagedWriter<T, Shape, Chain<Parts...>>;
};

}  // namespace transformer_kernels::cuda
