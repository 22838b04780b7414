// SPDX-License-Identifier: MIT
// A CTA of the plain engine: float32 arithmetic, a number of a row a lane. A warp takes some keys
// at a time, in turn with the CTA's others.
#pragma once

#include "attention/decode/common/cta.cuh"

namespace transformer_kernels::cuda {

// T is q's dtype, C what the cache holds. A lane has kColumns numbers of a row.
template <class T, class C, int kColumns_>
struct PlainCacheTile {
  using Number = T;
  using Cached = C;
  static constexpr int kColumns = kColumns_;
  static constexpr int kDim = kColumns * kWarp;
  static constexpr int kKeys = 16 / kColumns;  // at a time
  static constexpr int kRows = 4;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr bool kScaled = std::is_same_v<C, std::int8_t>;
  static constexpr bool kOfOut = true;
  static_assert(kCacheUnit % kKeys == 0);
};

__device__ __forceinline__ float widen(std::int8_t v) { return v; }

// Rows of some keys that follow each other in a page.
template <class Tile>
struct PlainRows {
  float number[Tile::kKeys][Tile::kColumns];
  float scale[Tile::kKeys];

  // Rows [from, to) are tokens; what is not is not read, and 0.
  __device__ __forceinline__ void load(const CacheRows& cache, const CacheRows& scales,
                                       UnitPlace place, int head, int dim, IntRange tokens) {
    using C = typename Tile::Cached;
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int j = 0; j < Tile::kKeys; ++j) {
      const bool exists = j >= tokens.begin && j < tokens.end;
      const C* const row = static_cast<const C*>(cache.data) + place.page * cache.page_stride +
                           (place.row + j) * cache.row_stride + head * cache.head_stride;
#pragma unroll
      for (int i = 0; i < Tile::kColumns; ++i) {
        const int column = lane + i * kWarp;
        number[j][i] = exists && column < dim ? widen(row[column]) : 0;
      }
      if constexpr (Tile::kScaled) {
        scale[j] =
            exists
                ? static_cast<const float*>(
                      scales.data)[place.page * scales.page_stride +
                                   (place.row + j) * scales.row_stride + head * scales.head_stride]
                : 0;
      }
    }
  }
};

// A row of q, and what was found for it.
template <class Tile>
class PlainRow {
  using T = typename Tile::Number;
  using E = Exponent<T>;

 public:
  __device__ __forceinline__ void prepare(const KvCacheProblem& p, const CacheWork& work, int row,
                                          int shift) {
    const bool exists = row < p.group_rows();
    const GroupRow at = GroupRow::of(p, work.kv_head, exists ? row : 0);
    query_ = at.query;
    slope_ = p.slopes.at<float>(work.batch, at.head, 0.0f);
    const T* const from = row_at<T>(p.q, work.batch, at.query, at.head);
    load_row(from, exists ? static_cast<int>(p.dim) : 0, q_);
    if (exists) rotate_row(p, from, at.query + shift, q_);
#pragma unroll
    for (float& x : out_) x = 0;
  }

  // Keys from `first` on, of which `tokens` exist.
  __device__ __forceinline__ void add(const KvCacheProblem& p, const KeysOfRows& keys, int first,
                                      IntRange tokens, const PlainRows<Tile>& key,
                                      const PlainRows<Tile>& value) {
    float score[Tile::kKeys];
    float most = top_;
#pragma unroll
    for (int j = 0; j < Tile::kKeys; ++j) {
      float product = 0;
#pragma unroll
      for (int i = 0; i < Tile::kColumns; ++i) product = fmaf(q_[i], key.number[j][i], product);
      product = reduce_lanes<Add>(product);
      if constexpr (Tile::kScaled) product *= key.scale[j];
      const bool seen = j >= tokens.begin && j < tokens.end &&
                        first + j >= keys.band.first(query_) && first + j <= keys.band.last(query_);
      score[j] = seen ? score_of(p, keys, product, first + j) : -INFINITY;
      most = fmaxf(most, score[j]);
    }
    const float factor = E::power(top_ - most);
    top_ = most;
    sum_ *= factor;
#pragma unroll
    for (float& x : out_) x *= factor;
#pragma unroll
    for (int j = 0; j < Tile::kKeys; ++j) {
      float weight = E::power(score[j] - top_);
      sum_ += weight;
      if constexpr (Tile::kScaled) weight *= value.scale[j];
#pragma unroll
      for (int i = 0; i < Tile::kColumns; ++i) {
        out_[i] = fmaf(weight, value.number[j][i], out_[i]);
      }
    }
  }

  __device__ __forceinline__ void store(SumsOfCta<Tile>& sums, int row) const {
    const int warp = threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < Tile::kColumns; ++i) sums.out[warp][row][lane + i * kWarp] = out_[i];
    if (lane != 0) return;
    sums.top[warp][row] = top_;
    sums.sum[warp][row] = sum_;
  }

 private:
  __device__ __forceinline__ float score_of(const KvCacheProblem& p, const KeysOfRows& keys,
                                            float product, int key) const {
    const auto cap = static_cast<float>(p.softcap);
    float score = product * static_cast<float>(cap != 0 ? p.scale / p.softcap : p.scale);
    if (cap != 0) score = cap * tanhf(score);
    score -= slope_ * static_cast<float>(abs(key - query_ - keys.band.shift));
    return score * E::kPerNatural;
  }

  float q_[Tile::kColumns];
  float out_[Tile::kColumns];
  float top_ = kNoScore;
  float sum_ = 0;
  float slope_;
  int query_;
};

// One CTA an SM would do: without that bound ptxas saves registers and spills.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attend_plainly(const __grid_constant__ KvCacheProblem p, const __grid_constant__ CacheGrid grid,
                   const __grid_constant__ CacheParts parts) {
  __shared__ SumsOfCta<Tile> sums;
  const int warp = threadIdx.x / kWarp;
  const CacheWork work = CacheWork::of(p, grid, blockIdx.x);
  const Band band = band_of(p, length_of(p, work.batch));
  const KeyChunks chunks = chunks_of(p, band, grid.most);
  if (work.chunk >= chunks.count) return;

  const int first_row = work.block * Tile::kRows;
  const int left = static_cast<int>(p.group_rows()) - first_row;
  const int count = left < Tile::kRows ? left : Tile::kRows;
  const KeysOfRows keys = KeysOfRows::of(p, band, chunks[work.chunk], first_row, count);
  const UnitPlaces places(p, work.batch);
  PlainRow<Tile> row[Tile::kRows];
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) row[r].prepare(p, work, first_row + r, band.shift);

  int key = keys.some.begin / kCacheUnit * kCacheUnit + warp * Tile::kKeys;
  for (; key < keys.some.end; key += Tile::kWarps * Tile::kKeys) {
    const int within = key % kCacheUnit;
    UnitPlace place = places.at(p, key - within);
    place.row += within;
    const IntRange in = keys.in_unit(key, place);
    PlainRows<Tile> k, v;
    k.load(p.k_cache, p.k_scale, place, work.kv_head, static_cast<int>(p.dim), in);
    v.load(p.v_cache, p.v_scale, place, work.kv_head, static_cast<int>(p.value_dim), in);
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) row[r].add(p, keys, key, in, k, v);
  }
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) row[r].store(sums, r);
  __syncthreads();
  store_sums<Tile>(p, grid, parts, work, sums, first_row, chunks.count == 1);
}

}  // namespace transformer_kernels::cuda
