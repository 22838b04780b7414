// SPDX-License-Identifier: MIT
// One call of attention over a cache. All memory of the caches that no token lies in is NaN, and so
// is every scale there: a result that is a number has read none of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "backend.h"
#include "numbers.h"
#include "transformer_kernels/attention/decode.h"

namespace transformer_kernels::testing {

struct CacheCase {
  std::vector<std::int64_t> lengths;  // before new tokens
  std::int64_t queries = 1;
  std::int64_t added = 1;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t dim = 16;
  std::int64_t value_dim = 16;
  std::int64_t page = 0;  // 0: no pages
  std::int64_t capacity = 64;
  bool heads_first = false;
  bool int8 = false;
  std::int64_t frequencies = 0;
  bool interleaved = false;
  bool causal = true;
  std::int64_t left = -1;
  double softcap = 0;
  bool slopes = false;
  bool sinks = false;

  std::int64_t batch() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t columns() const { return page == 0 ? 1 : (capacity + page - 1) / page; }
  std::int64_t total(std::int64_t b) const { return lengths[b] + added; }
};

// A tensor in memory of its own, contiguous in the order of its dimensions, or of dimensions 0, 2,
// 1, 3.
class CacheTensor {
 public:
  CacheTensor() = default;
  CacheTensor(DType dtype, std::vector<std::int64_t> sizes, const Values& values,
              bool heads_first = false)
      : bytes_(values.size() * size_of(dtype) + 1) {
    std::vector<std::size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    if (heads_first) std::swap(order[1], order[2]);
    view_.dtype = dtype;
    view_.rank = static_cast<int>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), view_.sizes.begin());
    std::int64_t stride = 1;
    for (auto i = order.rbegin(); i != order.rend(); ++i) {
      view_.strides[*i] = stride;
      stride *= sizes[*i];
    }
    view_.data = bytes_.data();
    for (std::size_t i = 0; i < values.size(); ++i) put(i, values[i]);
  }
  CacheTensor(CacheTensor&&) = default;
  CacheTensor& operator=(CacheTensor&&) = default;

  const TensorView& view() const { return view_; }
  TensorView& view() { return view_; }
  // Elements in the order of dimensions.
  Values values() const {
    Values values(view_.numel());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = get(i);
    return values;
  }
  const std::vector<char>& bytes() const { return bytes_; }
  std::vector<char>& bytes() { return bytes_; }

 private:
  char* place(std::size_t index) const {
    std::int64_t offset = 0;
    auto rest = static_cast<std::int64_t>(index);
    for (int i = view_.rank - 1; i >= 0; --i) {
      offset += rest % view_.sizes[i] * view_.strides[i];
      rest /= view_.sizes[i];
    }
    return static_cast<char*>(view_.data) + offset * size_of(view_.dtype);
  }
  void put(std::size_t index, double value) {
    if (view_.dtype == DType::kInt8) {
      *place(index) = static_cast<char>(static_cast<std::int8_t>(value));
    } else if (view_.dtype == DType::kInt64) {
      const auto whole = static_cast<std::int64_t>(value);
      std::memcpy(place(index), &whole, sizeof(whole));
    } else {
      encode(view_.dtype, value, place(index));
    }
  }
  double get(std::size_t index) const {
    if (view_.dtype == DType::kInt8) return static_cast<std::int8_t>(*place(index));
    return decode(view_.dtype, place(index));
  }

  std::vector<char> bytes_;
  TensorView view_;
};

// The numbers of tokens in the order (batch, token, head, dim), of all tokens of the longest one.
struct CacheNumbers {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;
  Values values{};

  std::int64_t row(std::int64_t b, std::int64_t j, std::int64_t h) const {
    return ((b * tokens + j) * heads + h) * dim;
  }
};

// The rotation of a row, as rope.h has it.
inline void rotate(const CacheCase& c, const Values& cos, const Values& sin, std::int64_t position,
                   double* row) {
  for (std::int64_t f = 0; f < c.frequencies; ++f) {
    double& first = row[c.interleaved ? 2 * f : f];
    double& second = row[c.interleaved ? 2 * f + 1 : f + c.frequencies];
    const double a = first;
    const double b = second;
    const double x = cos[position * c.frequencies + f];
    const double y = sin[position * c.frequencies + f];
    first = a * x - b * y;
    second = b * x + a * y;
  }
}

class CacheRun {
 public:
  CacheRun(DType dtype, CacheCase given) : c(std::move(given)), dtype_(dtype) {
    make_pages();
    make_cache(k_cache, k_scale, c.dim);
    make_cache(v_cache, v_scale, c.value_dim);
    const auto rows = [&](CacheTensor& tensor, std::int64_t time, std::int64_t heads,
                          std::int64_t dim) {
      tensor = CacheTensor(dtype, {c.batch(), time, heads, dim},
                           random_normal(c.batch() * time * heads * dim, dtype), c.heads_first);
    };
    rows(q, c.queries, c.heads, c.dim);
    rows(k, c.added, c.kv_heads, c.dim);
    rows(v, c.added, c.kv_heads, c.value_dim);
    rows(out, c.queries, c.heads, c.value_dim);
    lse = CacheTensor(DType::kFloat32, {c.batch(), c.heads, c.queries},
                      Values(c.batch() * c.heads * c.queries, kNan));
    lengths = CacheTensor(DType::kInt32, {c.batch()}, Values(c.lengths.begin(), c.lengths.end()));
    make_angles();
    slopes = CacheTensor(DType::kFloat32, {c.batch(), c.heads},
                         random_normal(c.batch() * c.heads, DType::kFloat32, 0.1, 0.02));
    sinks = CacheTensor(DType::kFloat32, {c.heads}, random_normal(c.heads, DType::kFloat32));
  }

  AttentionWithKvCache arguments() {
    AttentionWithKvCache a{};
    a.q = q.view();
    a.k_cache = k_cache.view();
    a.v_cache = v_cache.view();
    if (c.added > 0) {
      a.k = k.view();
      a.v = v.view();
    }
    a.lengths = lengths.view();
    if (c.page > 0) a.page_table = table.view();
    if (c.frequencies > 0) {
      a.cos = cos.view();
      a.sin = sin.view();
    }
    if (c.int8) {
      a.k_scale = k_scale.view();
      a.v_scale = v_scale.view();
    }
    if (c.slopes) a.alibi_slopes = slopes.view();
    if (c.sinks) a.sinks = sinks.view();
    a.interleaved = c.interleaved;
    a.causal = c.causal;
    a.window_left = c.left;
    a.softcap = c.softcap;
    a.out = out.view();
    a.lse = lse.view();
    return a;
  }

  // The numbers that a cache holds, of the tokens that there are.
  CacheNumbers stored(const CacheTensor& cache, const CacheTensor& scale) const {
    const TensorView& view = cache.view();
    const Values all = cache.values();
    const Values scales = c.int8 ? scale.values() : Values();
    CacheNumbers found{c.capacity, c.kv_heads, view.sizes[3]};
    found.values.resize(c.batch() * found.tokens * found.heads * found.dim, kNan);
    for (std::int64_t b = 0; b < c.batch(); ++b) {
      for (std::int64_t j = 0; j < c.total(b); ++j) {
        for (std::int64_t h = 0; h < c.kv_heads; ++h) {
          const std::int64_t row = cache_row(b, j, h);
          for (std::int64_t d = 0; d < found.dim; ++d) {
            found.values[found.row(b, j, h) + d] =
                all[row * found.dim + d] * (c.int8 ? scales[row] : 1);
          }
        }
      }
    }
    return found;
  }

  // The rows of q after their rotation, without a rounding.
  Values rotated_q() const {
    Values rows = q.values();
    for (std::int64_t b = 0; b < c.batch(); ++b) {
      for (std::int64_t i = 0; i < c.queries; ++i) {
        for (std::int64_t h = 0; h < c.heads; ++h) {
          rotate(c, cos.values(), sin.values(), c.total(b) - c.queries + i,
                 rows.data() + ((b * c.queries + i) * c.heads + h) * c.dim);
        }
      }
    }
    return rows;
  }

  std::int64_t cache_row(std::int64_t b, std::int64_t j, std::int64_t h) const {
    const std::int64_t size = c.page == 0 ? c.capacity : c.page;
    const std::int64_t page = c.page == 0 ? b : pages_[b * c.columns() + j / size];
    return (page * size + j % size) * c.kv_heads + h;
  }

  CacheCase c;
  CacheTensor q, k_cache, v_cache, k, v, k_scale, v_scale, lengths, table, cos, sin, slopes, sinks,
      out, lse;

 private:
  // Twice as many pages as tokens need, in any order.
  void make_pages() {
    if (c.page == 0) {
      page_count_ = c.batch();
      return;
    }
    page_count_ = 2 * c.batch() * c.columns();
    std::vector<std::int64_t> order(page_count_);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_engine());
    Values entries(c.batch() * c.columns(), -1);
    for (std::int64_t b = 0; b < c.batch(); ++b) {
      for (std::int64_t i = 0; i * c.page < c.total(b); ++i) {
        entries[b * c.columns() + i] = static_cast<double>(order[b * c.columns() + i]);
      }
    }
    pages_.assign(entries.begin(), entries.end());
    table = CacheTensor(DType::kInt32, {c.batch(), c.columns()}, entries);
  }

  void make_cache(CacheTensor& cache, CacheTensor& scale, std::int64_t dim) {
    const std::int64_t size = c.page == 0 ? c.capacity : c.page;
    const std::int64_t rows = page_count_ * size * c.kv_heads;
    Values numbers(rows * dim, c.int8 ? 127 : kNan);
    Values scales(rows, kNan);
    for (std::int64_t b = 0; b < c.batch(); ++b) {
      for (std::int64_t j = 0; j < c.lengths[b]; ++j) {
        for (std::int64_t h = 0; h < c.kv_heads; ++h) {
          const std::int64_t row = cache_row(b, j, h);
          const Values drawn = random_normal(dim, dtype_);
          for (std::int64_t d = 0; d < dim; ++d) {
            numbers[row * dim + d] =
                c.int8 ? std::clamp(std::round(drawn[d] * 30), -127.0, 127.0) : drawn[d];
          }
          scales[row] = rounded_to(DType::kFloat32, 0.02 + 0.01 * std::abs(drawn[0]));
        }
      }
    }
    cache = CacheTensor(c.int8 ? DType::kInt8 : dtype_, {page_count_, size, c.kv_heads, dim},
                        numbers, c.heads_first);
    scale = CacheTensor(DType::kFloat32, {page_count_, size, c.kv_heads}, scales, c.heads_first);
  }

  void make_angles() {
    const std::int64_t positions = c.capacity;
    Values cosines(positions * c.frequencies);
    Values sines(positions * c.frequencies);
    for (std::size_t i = 0; i < cosines.size(); ++i) {
      cosines[i] = rounded_to(DType::kFloat32, std::cos(0.37 * static_cast<double>(i)));
      sines[i] = rounded_to(DType::kFloat32, std::sin(0.37 * static_cast<double>(i)));
    }
    cos = CacheTensor(DType::kFloat32, {positions, c.frequencies}, cosines);
    sin = CacheTensor(DType::kFloat32, {positions, c.frequencies}, sines);
  }

  DType dtype_;
  std::int64_t page_count_ = 0;
  std::vector<std::int64_t> pages_;
};

}  // namespace transformer_kernels::testing
