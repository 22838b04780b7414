// SPDX-License-Identifier: MIT
// Attention over a cache: blocks of kCacheBlock keys with a running maximum and sum of each row of
// q. Compiled once per instruction set; see core/cpu/isa.h.
#include "attention/decode/kernels.h"

#include "attention/cpu/forward.h"
#include "attention/decode/products.h"
#include "rope/pairs.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// ---------------------------------------------------------------------------- rows of tokens

// Rotates a row in float to its position.
void rotate_row(const KvCacheProblem& p, std::int64_t position, float* row) {
  if (p.frequencies == 0) return;
  float cos[kMostDim / 2];
  float sin[kMostDim / 2];
  widen_row(p.cos.dtype, p.cos.row(position), p.frequencies, cos);
  widen_row(p.sin.dtype, p.sin.row(position), p.frequencies, sin);
  rotate_pairs(row, cos, sin, p.frequencies, p.interleaved);
}

// Rounds a row to 127 steps of its largest number. A row with a number that is not finite has a
// scale that is none.
float quantize_row(const float* row, std::int64_t count, std::int8_t* target) {
  float most = 0;
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    most = std::max(most, __builtin_fabsf(row[i]));
    sum += row[i] * 0.0f;
  }
  const float steps = most > 0 && sum == 0 ? 127 / most : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    target[i] = steps == 0 ? std::int8_t{0}
                           : static_cast<std::int8_t>(__builtin_nearbyintf(row[i] * steps));
  }
  return most / 127 + sum;
}

// Where token `token` of a sequence is kept.
struct Place {
  std::int64_t page;
  std::int64_t row;

  static Place of(const KvCacheProblem& p, std::int64_t batch, std::int64_t token) {
    return {p.page(batch, token / p.page_size), token % p.page_size};
  }
};

void store_token(const KvCacheProblem& p, const CacheRows& cache, const CacheRows& scale,
                 Place place, std::int64_t head, const float* row, std::int64_t dim) {
  char* const target = cache.address(place.page, place.row, head);
  if (cache.dtype != DType::kInt8) return narrow_row(p.dtype, row, 1.0f, dim, target);
  *reinterpret_cast<float*>(scale.address(place.page, place.row, head)) =
      quantize_row(row, dim, reinterpret_cast<std::int8_t*>(target));
}

void append(const KvCacheProblem& p, std::int64_t row) {
  const std::int64_t head = row % p.kv_heads;
  const std::int64_t token = row / p.kv_heads % p.added;
  const std::int64_t batch = row / p.kv_heads / p.added;
  const std::int64_t position = p.length(batch) + token;
  const Place place = Place::of(p, batch, position);
  float numbers[kMostDim];
  widen_row(p.dtype, p.k.address(p.dtype, batch, token, head), p.dim, numbers);
  rotate_row(p, position, numbers);
  store_token(p, p.k_cache, p.k_scale, place, head, numbers, p.dim);
  widen_row(p.dtype, p.v.address(p.dtype, batch, token, head), p.value_dim, numbers);
  store_token(p, p.v_cache, p.v_scale, place, head, numbers, p.value_dim);
}

template <class C>
TFK_FLATTEN void reorder_to_wide(const float* row, std::int64_t count, float* wide) {
  for_each_vector<C>(count, [&](std::int64_t i, int, auto lanes) {
    store_wide<C>(wide + i, load_as<C>(row + i, lanes), lanes);
  });
}
template <class C>
TFK_FLATTEN void reorder_from_wide(const float* wide, std::int64_t count, float* row) {
  for_each_vector<C>(count, [&](std::int64_t i, int, auto lanes) {
    store(row + i, load_wide<C>(wide + i, lanes), lanes);
  });
}

template <class C>
void prepare(const KvCacheProblem& p, std::int64_t row, PreparedRows q) {
  const std::int64_t of_group = row % p.group_rows();
  const std::int64_t kv_head = row / p.group_rows() % p.kv_heads;
  const std::int64_t batch = row / p.group_rows() / p.kv_heads;
  const std::int64_t head = kv_head * p.group() + of_group / p.queries;
  const std::int64_t query = of_group % p.queries;
  float numbers[kMostDim];
  widen_row(p.dtype, p.q.address(p.dtype, batch, query, head), p.dim, numbers);
  rotate_row(p, p.diagonal(p.with_new(batch), query), numbers);
  reorder_to_wide<C>(numbers, p.dim, q.row(p, batch, kv_head, of_group));
}

// ---------------------------------------------------------------------------- a chunk of keys

// The rows of a block of keys: where they lie, or their scales. Those past the last repeat it.
void find_rows(const KvCacheProblem& p, const CacheRows& cache, const CacheItem& item, Range keys,
               const char** rows) {
  std::int64_t key = keys.begin;
  while (key < keys.end) {
    const Place place = Place::of(p, item.batch, key);
    const std::int64_t end = std::min(keys.end, key + p.page_size - place.row);
    const char* row = cache.address(place.page, place.row, item.kv_head);
    const std::int64_t step = cache.row_stride * size_of(cache.dtype);
    for (; key < end; ++key, row += step) *rows++ = row;
  }
  const char* const last = rows[-1];
  for (std::int64_t i = keys.size(); i < kCacheBlock; ++i) *rows++ = last;
}

void find_scales(const KvCacheProblem& p, const CacheRows& scale, const CacheItem& item, Range keys,
                 float* scales) {
  const char* rows[kCacheBlock];
  find_rows(p, scale, item, keys, rows);
  for (int i = 0; i < kCacheBlock; ++i) scales[i] = *reinterpret_cast<const float*>(rows[i]);
}

// Keys that some of the rows see: those of one head, or all queries.
Range visible_keys(const KvCacheProblem& p, const Sequence& s, Range rows) {
  const std::int64_t first = rows.begin % p.queries;
  const bool one_head = first + rows.size() <= p.queries;
  return p.visible(s, one_head ? Range{first, first + rows.size()} : Range{0, p.queries});
}

// The keys of the item's chunk that its rows see, in whole blocks of the chunk.
Range keys_of(const KvCacheProblem& p, const Sequence& s, const CacheItem& item) {
  const Range seen = visible_keys(p, s, item.rows);
  const std::int64_t hidden = std::max<std::int64_t>(seen.begin - item.keys.begin, 0);
  return {item.keys.begin + hidden / kCacheBlock * kCacheBlock, std::min(item.keys.end, seen.end)};
}

// Rows of scores become weights, and what was found before is scaled to their new top.
template <class C>
void weigh(const KvCacheProblem& p, const Sequence& s, const CacheItem& item, Range keys,
           float* scores, PartialRows found) {
  const std::int64_t width = rounded_up(keys.size(), 16);
  const std::int64_t out_width = wide_cols(p.value_dim);
  float scales[kCacheBlock];
  constexpr bool kScaled = __is_same(C, std::int8_t);
  if constexpr (kScaled) {
    find_scales(p, p.k_scale, item, keys, scales);
    for (std::int64_t r = 0; r < item.rows.size(); ++r) {
      multiply_rows(scores + r * kCacheBlock, scales, width);
    }
    find_scales(p, p.v_scale, item, keys, scales);
  }
  for (std::int64_t r = 0; r < item.rows.size(); ++r) {
    float* const row = scores + r * kCacheBlock;
    const std::int64_t of_group = item.rows.begin + r;
    const std::int64_t head = item.kv_head * p.group() + of_group / p.queries;
    const ScorePlace at{item.batch, head, of_group % p.queries, keys.begin, width};
    const double scale = score_row<float>(p, s, at, row, nullptr, nullptr);
    accumulate_row(scale, width, row, found.out(r), out_width, found.top(r), found.sum(r));
    if constexpr (kScaled) multiply_rows(row, scales, width);
  }
}

template <class C>
void attend(const KvCacheProblem& p, const CacheItem& item, PreparedRows q, PartialRows found) {
  const Sequence s = p.with_new(item.batch);
  const std::int64_t rows = item.rows.size();
  const float* const first_row = q.row(p, item.batch, item.kv_head, item.rows.begin);
  for (std::int64_t r = 0; r < rows; ++r) {
    fill_row(found.out(r), 0.0f, wide_cols(p.value_dim));
    found.top(r) = kMinusInfinity<float>;
    found.sum(r) = 0;
  }
  alignas(kCacheLine) float scores[kCacheRows * kCacheBlock];
  const char* key_rows[kCacheBlock];
  const char* value_rows[kCacheBlock];
  const Range all = keys_of(p, s, item);
  const auto block_at = [&](std::int64_t key) {
    return Range{key, std::min(key + kCacheBlock, all.end)};
  };
  // The first rows of q ask for what all of them need next.
  const auto fetch_of = [](std::int64_t row, const char* const* next, std::int64_t dim) {
    return Fetch{row == 0 ? next : nullptr, dim * static_cast<std::int64_t>(sizeof(C))};
  };
  if (!all.empty()) find_rows(p, p.k_cache, item, block_at(all.begin), key_rows);
  for (std::int64_t key = all.begin; key < all.end; key += kCacheBlock) {
    const Range keys = block_at(key);
    find_rows(p, p.v_cache, item, keys, value_rows);
    for_each_row_group(rows, [&]<int kRows>(std::int64_t r) {
      dot_rows<C, kRows>(first_row + r * q.step, q.step, key_rows, rounded_up(keys.size(), 16),
                         p.dim, scores + r * kCacheBlock, fetch_of(r, value_rows, p.value_dim));
    });
    weigh<C>(p, s, item, keys, scores, found);
    if (keys.end < all.end) find_rows(p, p.k_cache, item, block_at(keys.end), key_rows);
    for_each_row_group(rows, [&]<int kRows>(std::int64_t r) {
      add_rows_of<C, kRows>(scores + r * kCacheBlock, value_rows, keys.size(), p.value_dim,
                            found.out(r), found.step, fetch_of(r, key_rows, p.dim));
    });
  }
}

// ---------------------------------------------------------------------------- all chunks

// sum += row * factor
TFK_FLATTEN void add_scaled_row(float* sum, const float* row, float factor, std::int64_t count) {
  const Vec<float> scale = Vec<float>::of(factor);
  map_row(sum, sum, row, count, [&](Vec<float> a, Vec<float> b) { return fma(b, scale, a); });
}

template <class C>
void finish(const KvCacheProblem& p, const CacheItem& item, PartialRows found, std::int64_t count) {
  const std::int64_t rows = item.rows.size();
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t of_group = item.rows.begin + r;
    const std::int64_t head = item.kv_head * p.group() + of_group / p.queries;
    const std::int64_t query = of_group % p.queries;
    const float sink = p.sinks.at<float>(item.batch, head, kMinusInfinity<float>);
    float top = sink;
    for (std::int64_t c = 0; c < count; ++c) top = std::max(top, found.top(c * rows + r));
    float wide[wide_cols(kMostDim)] = {};
    float sum = 0;
    if (top != kMinusInfinity<float>) {
      sum = shrink_of(sink, top);
      for (std::int64_t c = 0; c < count; ++c) {
        const float factor = shrink_of(found.top(c * rows + r), top);
        sum += found.sum(c * rows + r) * factor;
        add_scaled_row(wide, found.out(c * rows + r), factor, wide_cols(p.value_dim));
      }
    }
    float numbers[kMostDim];
    reorder_from_wide<C>(wide, p.value_dim, numbers);
    narrow_row(p.dtype, numbers, sum != 0 ? 1 / sum : 1.0f, p.value_dim,
               p.out.address(p.dtype, item.batch, query, head));
    if (p.lse == nullptr) continue;
    p.lse[(item.batch * p.heads + head) * p.queries + query] =
        sum != 0 ? log_sum_exp(top, natural_log(sum)).lse : kMinusInfinity<float>;
  }
}

template <class C>
constexpr KvCacheKernels kernels_of() {
  return {.prepare = prepare<C>, .append = append, .attend = attend<C>, .finish = finish<C>};
}

}  // namespace

const KvCacheKernelTable kv_cache_kernels = {kernels_of<float>(), kernels_of<Half>(),
                                             kernels_of<BFloat16>(), kernels_of<std::int8_t>()};

}  // namespace transformer_kernels::cpu::TFK_ISA
