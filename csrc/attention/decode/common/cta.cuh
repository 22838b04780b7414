// SPDX-License-Identifier: MIT
// A CTA of an engine: some rows of a group against a chunk of keys. A Tile says in what numbers it
// computes (Number), whether these are out's (kOfOut), how many rows and warps it has (kRows,
// kWarps, kThreads), and how many columns (kDim).
#pragma once

#include "attention/decode/common/sequence.cuh"

namespace transformer_kernels::cuda {

// The page and row of a unit's first token; a page of -1 does not exist.
struct UnitPlace {
  int page;
  int row;
};

// Finds the places of units of a sequence. Pages are whole units.
class UnitPlaces {
 public:
  __device__ __forceinline__ UnitPlaces(const KvCacheProblem& p, int batch)
      : table_(p.table == nullptr ? nullptr : p.table + batch * p.table_stride),
        batch_(batch),
        units_of_page_(static_cast<unsigned>(p.page_size / kCacheUnit)),
        factor_(p.table == nullptr ? 0 : 0xffffffffu / units_of_page_) {}

  // `key` is the first of a unit. A quotient by multiplication is at most one too small.
  __device__ __forceinline__ UnitPlace at(const KvCacheProblem& p, int key) const {
    if (table_ == nullptr) return {batch_, key};
    const unsigned unit = static_cast<unsigned>(key) / kCacheUnit;
    unsigned index = __umulhi(unit, factor_);
    unsigned row = unit - index * units_of_page_;
    if (row >= units_of_page_) {
      row -= units_of_page_;
      ++index;
    }
    return {checked_page(p, table_[index]), static_cast<int>(row) * kCacheUnit};
  }

 private:
  const std::int32_t* table_;
  int batch_;
  unsigned units_of_page_;
  unsigned factor_;
};

// The keys of a CTA's rows, and which of them not every row sees.
struct KeysOfRows {
  Band band;
  IntRange some;  // that a row sees; others are not read
  IntRange all;   // that each row sees

  // Rows [first, first + count) of a group are queries of one head, or all queries.
  static __device__ __forceinline__ KeysOfRows of(const KvCacheProblem& p, const Band& band,
                                                  IntRange chunk, int first, int count) {
    const int queries = static_cast<int>(p.queries);
    const int from = first % queries;
    const bool one_head = from + count <= queries;
    const int low = one_head ? from : 0;
    const int high = one_head ? from + count - 1 : queries - 1;
    const IntRange some = band.seen_by_any(low, high);
    return {band,
            {some.begin > chunk.begin ? some.begin : chunk.begin,
             some.end < chunk.end ? some.end : chunk.end},
            band.seen_by_all(low, high)};
  }

  // Tokens of the unit that begins at `key`, from there on.
  __device__ __forceinline__ IntRange in_unit(int key, UnitPlace place) const {
    if (place.page < 0) return {0, 0};
    const int from = some.begin - key;
    const int to = some.end - key;
    return {from > 0 ? from : 0, to < kCacheUnit ? to : kCacheUnit};
  }

  __device__ __forceinline__ bool seen_by_all(int key, UnitPlace place) const {
    return place.page >= 0 && key >= all.begin && key + kCacheUnit <= all.end &&
           key >= some.begin && key + kCacheUnit <= some.end;
  }
};

// The sums of a CTA's warps.
template <class Tile>
struct SumsOfCta {
  alignas(16) float out[Tile::kWarps][Tile::kRows][Tile::kDim + 4];
  float top[Tile::kWarps][Tile::kRows];
  float sum[Tile::kWarps][Tile::kRows];
};

// The sums of all warps, of the rows that there are: results, or a part of them.
template <class Tile>
__device__ __forceinline__ void store_sums(const KvCacheProblem& p, const CacheGrid& grid,
                                           const CacheParts& parts, const CacheWork& work,
                                           const SumsOfCta<Tile>& sums, int first_row, bool whole) {
  using T = typename Tile::Number;
  using E = Exponent<T>;
  constexpr int kFours = Tile::kDim / 4;
  for (int i = threadIdx.x; i < Tile::kRows * kFours; i += Tile::kThreads) {
    const int r = i / kFours;
    const int column = i % kFours * 4;
    const int row = first_row + r;
    if (row >= p.group_rows() || column >= p.value_dim) continue;
    float top = kNoScore;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) top = fmaxf(top, sums.top[w][r]);
    float sum = 0;
    float out[4] = {};
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      const float factor = E::power(sums.top[w][r] - top);
      const float4 own = *reinterpret_cast<const float4*>(&sums.out[w][r][column]);
      sum += sums.sum[w][r] * factor;
      out[0] = fmaf(own.x, factor, out[0]);
      out[1] = fmaf(own.y, factor, out[1]);
      out[2] = fmaf(own.z, factor, out[2]);
      out[3] = fmaf(own.w, factor, out[3]);
    }
    if (!whole) {
      const std::int64_t part = part_row(p, grid, work.batch, work.kv_head, work.chunk, row);
      *reinterpret_cast<float4*>(parts.out + part * parts.width + column) =
          make_float4(out[0], out[1], out[2], out[3]);
      if (column == 0) reinterpret_cast<float2*>(parts.top_and_sum)[part] = make_float2(top, sum);
      continue;
    }
    const GroupRow at = GroupRow::of(p, work.kv_head, row);
    const RowTotal<E> total = RowTotal<E>::of(p, at.head, top, sum);
    if (column == 0) store_lse(p, work.batch, at, total.lse);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float value = out[k] * total.inverse;
      if (column + k >= p.value_dim) continue;
      if (!Tile::kOfOut && p.dtype == DType::kBFloat16) {
        store_out<BFloat16>(p, work.batch, at, column + k, value);
      } else {
        store_out<T>(p, work.batch, at, column + k, value);
      }
    }
  }
}

}  // namespace transformer_kernels::cuda
