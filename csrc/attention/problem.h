// SPDX-License-Identifier: MIT
// Checked arguments of the family, as plain numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "attention/common/geometry.h"
#include "transformer_kernels/attention/attention.h"

namespace transformer_kernels {

// The most that D and Dv may be.
inline constexpr std::int64_t kMostDim = 256;

// Rows of q and of k that a kernel takes at a time.
struct BlockSizes {
  int queries;
  int keys;
};

inline std::string describe(const BlockSizes& block) {
  return std::to_string(block.queries) + "x" + std::to_string(block.keys);
}

// Rows of heads: q, k, v, out and their gradients. Strides are in elements.
struct HeadRows {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  [[gnu::always_inline]] char* address(DType dtype, std::int64_t batch, std::int64_t row,
                                       std::int64_t head) const {
    const std::int64_t index = batch * batch_stride + row * row_stride + head * head_stride;
    return static_cast<char*>(data) + index * size_of(dtype);
  }

  // Whether rows can be read and written in pieces of 16 bytes.
  bool in_pieces(DType dtype) const {
    const std::int64_t piece = 16 / size_of(dtype);
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && batch_stride % piece == 0 &&
           row_stride % piece == 0 && head_stride % piece == 0;
  }
};

// One number a score: bias, its gradient, and mask. A stride of 0 broadcasts.
struct ScoreMap {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 0;  // 1 or 0

  constexpr bool defined() const { return data != nullptr; }
  constexpr std::int64_t offset(std::int64_t batch, std::int64_t head, std::int64_t row,
                                std::int64_t col) const {
    return batch * batch_stride + head * head_stride + row * row_stride + col * col_stride;
  }
};

// One number a head.
struct HeadNumbers {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;

  template <class A>
  constexpr A at(std::int64_t batch, std::int64_t head, A otherwise) const {
    if (data == nullptr) return otherwise;
    return static_cast<const A*>(data)[batch * batch_stride + head * head_stride];
  }
};

struct AttentionProblem {
  DType dtype;
  std::int64_t batch;  // sequences
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t dim;
  std::int64_t value_dim;
  std::int64_t queries;  // rows of q, of one batch; with offsets, of all sequences together
  std::int64_t keys;
  const std::int32_t* q_offsets;  // null where all sequences have the same length
  const std::int32_t* k_offsets;

  HeadRows q;
  HeadRows k;
  HeadRows v;
  ScoreMap bias;
  ScoreMap mask;
  HeadNumbers slopes;
  HeadNumbers sinks;
  double scale;
  double softcap;
  std::int64_t window_left;  // -1: no bound
  std::int64_t window_right;
  bool bottom_right;
  std::uint32_t drop_below;  // of 65536
  std::uint64_t seed;
  std::uint64_t offset;
  const std::uint64_t* seed_data;  // CUDA: where not null, both lie there

  constexpr std::int64_t group() const { return heads / kv_heads; }
  constexpr std::int64_t rows() const { return (q_offsets ? 1 : batch) * heads * queries; }

  constexpr Sequence sequence(std::int64_t b) const {
    if (q_offsets == nullptr) return {0, queries, 0, keys};
    return {q_offsets[b], q_offsets[b + 1] - q_offsets[b], k_offsets[b],
            k_offsets[b + 1] - k_offsets[b]};
  }

  // The place of a sequence's first query in lse; the others follow.
  constexpr std::int64_t row(std::int64_t b, std::int64_t head) const {
    return q_offsets ? head * queries + q_offsets[b] : (b * heads + head) * queries;
  }

  // The key that stands on the diagonal of this query.
  constexpr std::int64_t diagonal(const Sequence& s, std::int64_t query) const {
    return query + (bottom_right ? s.keys - s.queries : 0);
  }

  // Keys that the query may see by its place.
  constexpr Range visible(const Sequence& s, std::int64_t query) const {
    const std::int64_t middle = diagonal(s, query);
    const std::int64_t zero = 0;
    const std::int64_t begin = window_left < 0 ? 0 : std::clamp(middle - window_left, zero, s.keys);
    const std::int64_t end =
        window_right < 0 ? s.keys : std::clamp(middle + window_right + 1, zero, s.keys);
    return {begin, std::max(begin, end)};
  }

  // Keys that one of these queries may see by its place: bounds move with the query, one way.
  constexpr Range visible(const Sequence& s, Range queries_of_block) const {
    return {visible(s, queries_of_block.begin).begin, visible(s, queries_of_block.end - 1).end};
  }

  // Queries that may see one of these keys by their place.
  constexpr Range seeing(const Sequence& s, Range keys_of_block) const {
    const std::int64_t shift = diagonal(s, 0);
    const std::int64_t zero = 0;
    const std::int64_t first = keys_of_block.begin - shift - window_right;
    const std::int64_t end = keys_of_block.end - shift + window_left;
    const std::int64_t begin = window_right < 0 ? 0 : std::clamp(first, zero, s.queries);
    return {begin, window_left < 0 ? s.queries : std::max(begin, std::min(end, s.queries))};
  }
};

namespace cuda {
// The keys that the queries of a sequence see, in 32 bits. band_of_keys() is its transpose,
// computed here so that kernels need not negate the shift.
constexpr Band band_of_queries(const AttentionProblem& p, const Sequence& s) {
  return {p.bottom_right ? static_cast<int>(s.keys - s.queries) : 0, bound_of(p.window_left),
          bound_of(p.window_right), static_cast<int>(s.keys)};
}
constexpr Band band_of_keys(const AttentionProblem& p, const Sequence& s) {
  return {p.bottom_right ? static_cast<int>(s.queries - s.keys) : 0, bound_of(p.window_right),
          bound_of(p.window_left), static_cast<int>(s.queries)};
}
}  // namespace cuda

// Whether scores are products of q and k times the scale, where visible.
constexpr bool has_plain_scores(const AttentionProblem& p) {
  return p.softcap == 0 && p.slopes.data == nullptr && !p.bias.defined() && !p.mask.defined();
}

struct AttentionForwardProblem : AttentionProblem {
  HeadRows out;
  void* lse;       // may be null
  void* lse_rest;  // may be null
};

struct AttentionBackwardProblem : AttentionProblem {
  HeadRows out;
  HeadRows dout;
  const void* lse;
  const void* lse_rest;  // may be null
  const void* dlse;      // may be null
  HeadRows dq;
  HeadRows dk;
  HeadRows dv;
  ScoreMap dbias;
  std::int64_t dbias_count;  // elements
  void* dsinks;              // may be null
  bool deterministic;
};

std::string describe(const AttentionForwardProblem& problem);
std::string describe(const AttentionBackwardProblem& problem);

namespace cpu {
void attention_forward(const Context& context, const AttentionForwardProblem& problem);
void attention_backward(const Context& context, const AttentionBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void attention_forward(const Context& context, const AttentionForwardProblem& problem);
void attention_backward(const Context& context, const AttentionBackwardProblem& problem);
}  // namespace cuda
namespace fpga {
void attention_forward(const Context& context, const AttentionForwardProblem& problem);
}  // namespace fpga

}  // namespace transformer_kernels
