// SPDX-License-Identifier: MIT
// Products of a few rows of q with rows of a cache, which lie anywhere: a tile of sums stays in
// registers, and each row of the cache is read once from memory and widened as it is read. For
// sources that are compiled once per instruction set.
#pragma once

#include <algorithm>

#include "attention/decode/problem.h"
#include "core/cpu/row_loop.h"
#include "core/cpu/simd_integers.h"

namespace transformer_kernels::cpu::TFK_ISA {

// Vectors of C that sums may take: half of the registers.
template <class C>
inline constexpr int kSums = kVectorRegisters / (InOrder<C> ? 2 : 4);
// Rows of the cache, or vectors of one, beside kRows rows of q.
template <class C, int kRows>
inline constexpr int kSumsBeside = std::clamp(kSums<C> / kRows, 1, 8);

template <class C, OneVector Lanes>
TFK_INLINE vec_t<C> load_cached(const char* row, std::int64_t column, Lanes lanes) {
  const C* const from = reinterpret_cast<const C*>(row) + column;
  if constexpr (__is_same(C, std::int8_t)) {
    return load_bytes(from, lanes);
  } else {
    return load(from, lanes);
  }
}

// Rows that a product asks for while it works on others, one for each row of the cache that it
// reads: rows of a cache lie apart, and a product with several rows of q is too slow for a
// processor to look far ahead. None where `rows` is null.
struct Fetch {
  const char* const* rows;
  std::int64_t bytes;
};

// The sum of each of kLanes vectors, in the order of the vectors.
template <class V, int kVectors>
TFK_INLINE V sum_of_each(V (&v)[kVectors]) {
#if TFK_ISA_LEVEL >= 2
  // As transpose() does it, but what an exchange of blocks brings together is added at once, and
  // half of the vectors is left.
  const auto halve = [&]<int kSize>() {
    const __m512i lane = lane_index();
    const __mmask16 right = _mm512_test_epi32_mask(lane, _mm512_set1_epi32(kSize));
    const __m512i upper = _mm512_mask_add_epi32(lane, right, lane, _mm512_set1_epi32(16 - kSize));
    const __m512i lower = _mm512_mask_add_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(kSize)),
                                                right, lane, _mm512_set1_epi32(16));
#pragma GCC unroll 8
    for (int i = 0; i < kSize; ++i) {
      v[i] = pick(v[i], upper, v[i + kSize]) + pick(v[i], lower, v[i + kSize]);
    }
  };
  halve.template operator()<8>();
  halve.template operator()<4>();
  halve.template operator()<2>();
  halve.template operator()<1>();
#else
  transpose(v);
#pragma GCC unroll 4
  for (int step = kVectors / 2; step > 0; step /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < step; ++i) v[i] = v[i] + v[i + step];
  }
#endif
  return v[0];
}

// The sums of kRows x kKeys vectors, to scores that are kCacheBlock apart.
template <class V, int kRows, int kKeys>
TFK_INLINE void reduce_tile(V (&sum)[kRows][kKeys], float* scores) {
  if constexpr (__is_same(V, Vec<float>) && kRows * kKeys == V::kLanes) {
    V all[V::kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < V::kLanes; ++i) all[i] = sum[i / kKeys][i % kKeys];
    float totals[V::kLanes];
    store(totals, sum_of_each(all), All{});
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __builtin_memcpy(scores + r * kCacheBlock, totals + r * kKeys, kKeys * sizeof(float));
    }
  } else {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int j = 0; j < kKeys; ++j) scores[r * kCacheBlock + j] = reduce_add(sum[r][j]);
    }
  }
}

// Scores of kRows rows of q, `step` numbers apart, with kKeys keys.
template <class C, int kRows, int kKeys>
TFK_INLINE void dot_tile(const float* q, std::int64_t step, const char* const* keys,
                         std::int64_t dim, float* scores) {
  using V = vec_t<C>;
  V sum[kRows][kKeys];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) sum[r][j] = V::of(0);
  }
  for_each_vector<C, 1>(dim, [&](std::int64_t i, int, auto lanes) {
    V left[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) left[r] = load_wide<C>(q + r * step + i, lanes);
#pragma GCC unroll 8
    for (int j = 0; j < kKeys; ++j) {
      const V right = load_cached<C>(keys[j], i, lanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][j] = fma(left[r], right, sum[r][j]);
    }
  });
  reduce_tile(sum, scores);
}

// Adds kRows weighted sums of `count` values to rows of out; weights are kCacheBlock apart.
template <class C, int kRows, int kVectors, OneVector Lanes>
TFK_INLINE void add_tile(const float* weights, const char* const* values, std::int64_t count,
                         std::int64_t column, float* out, std::int64_t step, Fetch fetch,
                         Lanes lanes) {
  using V = vec_t<C>;
  constexpr std::int64_t kBytes = kVectors * V::kLanes * sizeof(C);
  V sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V::of(0);
  }
  for (std::int64_t j = 0; j < count; ++j) {
    if (fetch.rows != nullptr) PrefetchRow<char>{fetch.rows[j] + column * sizeof(C)}(0, kBytes);
    V left[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) left[r] = V::of(weights[r * kCacheBlock + j]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const V right = load_cached<C>(values[j], column + v * V::kLanes, lanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][v] = fma(left[r], right, sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* const place = out + r * step + column + v * V::kLanes;
      store_wide<C>(place, load_wide<C>(place, lanes) + sum[r][v], lanes);
    }
  }
}

// Columns in tiles of kVectors vectors, then of half as many.
template <class C, int kRows, int kVectors>
TFK_INLINE void add_columns(const float* weights, const char* const* values, std::int64_t count,
                            std::int64_t column, std::int64_t dim, float* out, std::int64_t step,
                            Fetch fetch) {
  constexpr std::int64_t kLanes = vec_t<C>::kLanes;
  for (; column + kVectors * kLanes <= dim; column += kVectors * kLanes) {
    add_tile<C, kRows, kVectors>(weights, values, count, column, out, step, fetch, All{});
  }
  if constexpr (kVectors > 1) {
    add_columns<C, kRows, kVectors / 2>(weights, values, count, column, dim, out, step, fetch);
  } else if (column < dim) {
    add_tile<C, kRows, 1>(weights, values, count, column, out, step, fetch, First{dim - column});
  }
}

template <class C, int kRows>
TFK_FLATTEN void dot_rows(const float* q, std::int64_t step, const char* const* keys,
                          std::int64_t count, std::int64_t dim, float* scores, Fetch fetch) {
  constexpr int kKeys = kSumsBeside<C, kRows>;
  for (std::int64_t key = 0; key < count; key += kKeys) {
    for (int j = 0; j < kKeys && fetch.rows != nullptr; ++j) {
      PrefetchRow<char>{fetch.rows[key + j]}(0, fetch.bytes);
    }
    dot_tile<C, kRows, kKeys>(q, step, keys + key, dim, scores + key);
  }
}

template <class C, int kRows>
TFK_FLATTEN void add_rows_of(const float* weights, const char* const* values, std::int64_t count,
                             std::int64_t dim, float* out, std::int64_t step, Fetch fetch) {
  add_columns<C, kRows, kSumsBeside<C, kRows>>(weights, values, count, 0, dim, out, step, fetch);
}

// Calls body.operator()<rows>(first row) for the rows in groups of 4, 2 and 1.
template <class Body>
TFK_INLINE void for_each_row_group(std::int64_t rows, Body&& body) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) body.template operator()<4>(r);
  if (r + 2 <= rows) {
    body.template operator()<2>(r);
    r += 2;
  }
  if (r < rows) body.template operator()<1>(r);
}

}  // namespace transformer_kernels::cpu::TFK_ISA
