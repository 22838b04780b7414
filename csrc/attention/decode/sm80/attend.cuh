// SPDX-License-Identifier: MIT
// A CTA of the tensor cores' engine: some rows of a group against a chunk of keys. Its warps take
// units of 16 keys in turn, each with sums of its own, and add them up at the end, in their order.
//
//   time ->   a warp, its loads above what it computes
//   k0 v0  |              k1 |                     v1 |             k2 | ..
//          | S = k0 q        | P = exp(S), O += P v0  | S = k1 q       | ..
#pragma once

#include "attention/decode/common/cta.cuh"
#include "attention/decode/sm80/tile.cuh"

namespace transformer_kernels::cuda {

// The rows of a CTA, as products and scores read them.
template <class Tile>
struct RowsOfCta {
  using T = typename Tile::Number;
  static constexpr int kStep = Tile::kDim + 8;  // no two rows in the same banks

  alignas(16) T q[Tile::kRows][kStep];
  float factor[Tile::kRows];  // of products
  float slope[Tile::kRows];
  int query[Tile::kRows];

  // A warp prepares every fourth row: rotates it, and where T is not q's dtype, brings it to
  // numbers below 2 by a power of 2. Nothing that comes of rows that are none is stored.
  __device__ __forceinline__ void prepare(const KvCacheProblem& p, const CacheWork& work,
                                          int first_row, int shift, float scale) {
    if (!Tile::kScaled || p.dtype == DType::kFloat16) {
      prepare_from<T>(p, work, first_row, shift, scale);
    } else {
      prepare_from<BFloat16>(p, work, first_row, shift, scale);
    }
  }

 private:
  static constexpr int kBias = 127;
  static constexpr int kColumns = Tile::kDim / kWarp;
  static constexpr int kOfWarp = Tile::kRows / Tile::kWarps;

  template <class Q>
  __device__ __forceinline__ void prepare_from(const KvCacheProblem& p, const CacheWork& work,
                                               int first_row, int shift, float scale) {
    const int warp = threadIdx.x / kWarp;
    float number[kOfWarp][kColumns];
    const auto row_of = [&](int k) {
      const int row = first_row + warp + k * Tile::kWarps;
      return GroupRow::of(p, work.kv_head, row < p.group_rows() ? row : 0);
    };
    const auto data_of = [&](GroupRow row) {
      return row_at<Q>(p.q, work.batch, row.query, row.head);
    };
#pragma unroll
    for (int k = 0; k < kOfWarp; ++k) {
      const bool exists = first_row + warp + k * Tile::kWarps < p.group_rows();
      load_row(data_of(row_of(k)), exists ? static_cast<int>(p.dim) : 0, number[k]);
    }
#pragma unroll
    for (int k = 0; k < kOfWarp; ++k) {
      const GroupRow row = row_of(k);
      rotate_row(p, data_of(row), row.query + shift, number[k]);
      store(p, work, warp + k * Tile::kWarps, row, number[k], scale);
    }
  }

  __device__ __forceinline__ void store(const KvCacheProblem& p, const CacheWork& work, int r,
                                        GroupRow row, const float (&number)[kColumns],
                                        float scale) {
    const int lane = threadIdx.x % kWarp;
    int exponent = kBias;
    if constexpr (Tile::kScaled) {
      float most = 0;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) most = fmaxf(most, fabsf(number[i]));
      exponent = exponent_of(reduce_lanes<Max>(most));
    }
    const float smaller = __int_as_float((2 * kBias - exponent) << 23);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) q[r][lane + i * kWarp] = narrow<T>(number[i] * smaller);
    if (lane != 0) return;
    factor[r] = scale * __int_as_float(exponent << 23);
    slope[r] = p.slopes.at<float>(work.batch, row.head, 0.0f) * Exponent<T>::kPerNatural;
    query[r] = row.query;
  }

  // The exponent of float32's format; that of 1 where a power of 2 would be none.
  static __device__ __forceinline__ int exponent_of(float most) {
    const int exponent = __float_as_int(most) >> 23;
    return exponent > 0 && exponent < 2 * kBias ? exponent : kBias;
  }
};

// A warp's running sums of all its units.
template <class Tile>
class RunningSums {
  using T = typename Tile::Number;
  using E = Exponent<T>;
  static constexpr int kTiles = Tile::kTiles;
  static constexpr int kSteps = Tile::kSteps;
  // The top moves where a score is so much above it, and the unit of values likewise: both are kept
  // where float16 holds their product.
  static constexpr float kSlack = 8;
  static constexpr float kScaleSlack = 64;

 public:
  __device__ __forceinline__ RunningSums() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      top_[n][0] = top_[n][1] = kNoScore;
      sum_[n][0] = sum_[n][1] = 0;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out_[n][i][e] = 0;
      }
    }
  }

  // Scores, in units of E, become weights in the order of the operand of add().
  __device__ __forceinline__ void weigh(const float (&score)[kTiles][4],
                                        const float (&value_scale)[2],
                                        std::uint32_t (&weight)[kTiles][2]) {
    bool grew = false;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        grew |= fmaxf(score[n][e], score[n][e + 2]) > top_[n][e] + kSlack;
      }
    }
    if constexpr (Tile::kScaled) {
      grew |= fmaxf(fabsf(value_scale[0]), fabsf(value_scale[1])) > kScaleSlack * unit_;
    }
    if (__any_sync(kAllLanes, grew)) move(score, value_scale);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float power[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) power[e] = E::power(score[n][e] - top_[n][e % 2]);
#pragma unroll
      for (int e = 0; e < 2; ++e) sum_[n][e] += power[e] + power[e + 2];
      if constexpr (Tile::kScaled) {
#pragma unroll
        for (int e = 0; e < 4; ++e) power[e] *= value_scale[e / 2] * of_unit_;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) weight[n][i] = movmatrix_trans(narrow_word<T>(power + 2 * i));
    }
  }

  __device__ __forceinline__ void add(const UnitOfLane<Tile>& unit,
                                      const std::uint32_t (&weight)[kTiles][2]) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      std::uint32_t a[4];
      values_of_step(unit, i, a);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) mma_m16n8k16<T>(out_[n][i], a, weight[n][0], weight[n][1]);
    }
  }

  __device__ __forceinline__ void store(SumsOfCta<Tile>& sums) {
    const int warp = threadIdx.x / kWarp;
    const int lane = threadIdx.x % kWarp;
    const float unit = Tile::kScaled ? unit_ : 1;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = 8 * n + lane % 4 * 2 + e;
        const float sum = over_keys<Add>(sum_[n][e]);
        if (lane < 4) {
          sums.top[warp][row] = top_[n][e];
          sums.sum[warp][row] = sum;
        }
#pragma unroll
        for (int i = 0; i < kSteps; i += 2) {
          *reinterpret_cast<float4*>(&sums.out[warp][row][column_of_sum<Tile>(i, lane)]) =
              make_float4(out_[n][i][e] * unit, out_[n][i][e + 2] * unit, out_[n][i + 1][e] * unit,
                          out_[n][i + 1][e + 2] * unit);
        }
      }
    }
  }

 private:
  // Over the lanes that have other keys of the same rows.
  template <class Op>
  static __device__ __forceinline__ float over_keys(float value) {
#pragma unroll
    for (int offset = 4; offset < kWarp; offset *= 2) {
      value = Op()(value, __shfl_xor_sync(kAllLanes, value, offset));
    }
    return value;
  }

  __device__ __forceinline__ void move(const float (&score)[kTiles][4],
                                       const float (&value_scale)[2]) {
    float to_unit = 1;
    if constexpr (Tile::kScaled) {
      constexpr float kLeastUnit = 1e-30f;
      const float most = reduce_lanes<Max>(fmaxf(fabsf(value_scale[0]), fabsf(value_scale[1])));
      if (most > kScaleSlack * unit_) {
        const float next = fmaxf(most, kLeastUnit);
        to_unit = unit_ / next;
        unit_ = next;
        of_unit_ = 1 / next;
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float most = over_keys<Max>(fmaxf(score[n][e], score[n][e + 2]));
        const float next = fmaxf(top_[n][e], most);
        const float factor = E::power(top_[n][e] - next);
        top_[n][e] = next;
        sum_[n][e] *= factor;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          out_[n][i][e] *= factor * to_unit;
          out_[n][i][e + 2] *= factor * to_unit;
        }
      }
    }
  }

  float out_[kTiles][kSteps][4];
  float top_[kTiles][2];
  float sum_[kTiles][2];
  float unit_ = 0;  // with scales: that of out_
  float of_unit_ = 0;
};

// Products become scores in units of Exponent<T>; -inf where a row does not see the key.
template <class Tile>
__device__ __forceinline__ void score_unit(const KvCacheProblem& p, const RowsOfCta<Tile>& rows,
                                           const KeysOfRows& keys, float factor, int key,
                                           UnitPlace place, const float (&key_scale)[2],
                                           float (&score)[Tile::kTiles][4]) {
  using E = Exponent<typename Tile::Number>;
  const int lane = threadIdx.x % kWarp;
  const int first = UnitOfLane<Tile>::first_key(lane);
  const bool has_features = p.softcap != 0 || p.slopes.data != nullptr;
  const bool hides = !keys.seen_by_all(key, place);
  const IntRange in_unit = keys.in_unit(key, place);
#pragma unroll
  for (int n = 0; n < Tile::kTiles; ++n) {
    const int row = 8 * n + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (Tile::kScaled) {
        score[n][e] *= rows.factor[row + e % 2] * key_scale[e / 2];
      } else {
        score[n][e] *= factor;
      }
    }
    if (has_features) {
      const auto cap = static_cast<float>(p.softcap);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& s = score[n][e];
        if (cap != 0) {
          const float tangent = 1 - __fdividef(2, 1 + E::power(2 * E::kPerNatural * s));
          s = tangent * cap * E::kPerNatural;
        }
        const int at = rows.query[row + e % 2] + keys.band.shift;
        s -= rows.slope[row + e % 2] * static_cast<float>(abs(key + first + 8 * (e / 2) - at));
      }
    }
    if (!hides) continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = first + 8 * (e / 2);
      const int query = rows.query[row + e % 2];
      const bool seen = at >= in_unit.begin && at < in_unit.end &&
                        key + at >= keys.band.first(query) && key + at <= keys.band.last(query);
      if (!seen) score[n][e] = -INFINITY;
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kCtas)
    attend_to_cache(const __grid_constant__ KvCacheProblem p,
                    const __grid_constant__ CacheGrid grid,
                    const __grid_constant__ CacheParts parts) {
  using T = typename Tile::Number;
  constexpr int kTurn = Tile::kWarps * kCacheUnit;
  __shared__ RowsOfCta<Tile> rows;
  __shared__ SumsOfCta<Tile> sums;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const CacheWork work = CacheWork::of(p, grid, blockIdx.x);
  const Band band = band_of(p, length_of(p, work.batch));
  const KeyChunks chunks = chunks_of(p, band, grid.most);
  if (work.chunk >= chunks.count) return;

  const int first_row = work.block * Tile::kRows;
  const int left = static_cast<int>(p.group_rows()) - first_row;
  const int count = left < Tile::kRows ? left : Tile::kRows;
  const KeysOfRows keys = KeysOfRows::of(p, band, chunks[work.chunk], first_row, count);
  const UnitPlaces places(p, work.batch);
  UnitOfLane<Tile> unit{};
  const auto load_keys = [&](int key, UnitPlace place) {
    const IntRange in = keys.in_unit(key, place);
    unit.load_keys(p, place, work.kv_head, in.begin, in.end, lane);
  };
  const auto load_values = [&](int key, UnitPlace place) {
    const IntRange in = keys.in_unit(key, place);
    unit.load_values(p, place, work.kv_head, in.begin, in.end, lane);
  };
  const auto place_of = [&](int key) {
    return key < keys.some.end ? places.at(p, key) : UnitPlace{-1, 0};
  };
  int key = keys.some.begin / kCacheUnit * kCacheUnit + warp * kCacheUnit;
  UnitPlace place = place_of(key);
  if (Tile::kAhead && key < keys.some.end) {
    load_keys(key, place);
    load_values(key, place);
  }
  UnitPlace next = place_of(key + kTurn);

  const double scale = p.softcap != 0 ? p.scale / p.softcap : p.scale * Exponent<T>::kPerNatural;
  const auto factor = static_cast<float>(scale);
  rows.prepare(p, work, first_row, band.shift, factor);
  __syncthreads();
  std::uint32_t q[Tile::kTiles][Tile::kSteps][2];
#pragma unroll
  for (int n = 0; n < Tile::kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < Tile::kSteps; ++i) {
      const T* const from = &rows.q[8 * n + lane / 4][column_of_step<Tile>(i, lane)];
      const uint2 four = *reinterpret_cast<const uint2*>(from);
      q[n][i][0] = four.x;
      q[n][i][1] = four.y;
    }
  }

  RunningSums<Tile> running;
  for (; key < keys.some.end; key += kTurn) {
    if constexpr (!Tile::kAhead) load_keys(key, place);
    float score[Tile::kTiles][4] = {};
    float odd[Tile::kTiles][4] = {};  // a second chain of sums
#pragma unroll
    for (int i = 0; i < Tile::kSteps; ++i) {
      std::uint32_t a[4];
      keys_of_step(unit, i, a);
#pragma unroll
      for (int n = 0; n < Tile::kTiles; ++n) {
        mma_m16n8k16<T>(i % 2 != 0 ? odd[n] : score[n], a, q[n][i][0], q[n][i][1]);
      }
    }
#pragma unroll
    for (int n = 0; n < Tile::kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) score[n][e] += odd[n][e];
    }
    const bool more = key + kTurn < keys.some.end;
    if constexpr (!Tile::kAhead) load_values(key, place);
    if (Tile::kAhead && more) load_keys(key + kTurn, next);
    score_unit<Tile>(p, rows, keys, factor, key, place, unit.key_scale, score);
    std::uint32_t weight[Tile::kTiles][2];
    running.weigh(score, unit.value_scale, weight);
    running.add(unit, weight);
    if (Tile::kAhead && more) load_values(key + kTurn, next);
    place = next;
    next = place_of(key + 2 * kTurn);
  }
  running.store(sums);
  __syncthreads();
  store_sums<Tile>(p, grid, parts, work, sums, first_row, chunks.count == 1);
}

}  // namespace transformer_kernels::cuda
