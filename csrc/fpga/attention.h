// SPDX-License-Identifier: MIT
// Attention on an array: one call takes the heads of q that read one head of k and v. Keys beyond
// the array's buffers are cut into parts, whose results are merged by their maxima and sums.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::fpga {

// Rows without gaps: q is (heads, queries, dim), k is (keys, dim), v is (keys, value_dim).
struct AttentionGroup {
  std::int64_t heads;
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t dim;
  std::int64_t value_dim;
  double scale;
  std::int64_t offset;  // query i sees keys j <= i + offset
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
};

struct AttentionResults {
  std::span<float> out;   // (heads, queries, value_dim)
  std::span<double> lse;  // (heads, queries), or empty if not wanted
};

// The largest head dim of an array.
std::int64_t head_dim_of(const Array& array);

// Throws Error with the results unspecified: where elements are not finite, and where scores reach
// beyond what the array's logarithms hold. Takes the array for the time of the call.
void attention(Array& array, AttentionGroup group, const AttentionResults& results);

// ---- the plan, which tests look into ------------------------------------------------------------

// The factor of integer scores that gives logarithms to base 2: mantissa * 2^-(bits of the shift).
struct ScoreScale {
  std::uint16_t mantissa;
  int shift;
};

// The work of one command: rows [first, first + rows) of all heads' queries, one after the other,
// with one part of the keys.
struct QueryBlock {
  std::int64_t first;
  std::int64_t rows;
  bool causal;
  std::int64_t offset;  // of the part's keys and the block's rows

  friend bool operator==(const QueryBlock&, const QueryBlock&) = default;
};

// `factor` is what an integer score becomes in logarithms to base 2,
// and at most 65535 / 2^20.
ScoreScale score_scale(double factor);

// The blocks that see keys [begin, end). Where all queries see them all, blocks run across heads.
std::vector<QueryBlock> query_blocks(const AttentionGroup& group, std::int64_t begin,
                                     std::int64_t end, std::int64_t most_rows);

}  // namespace transformer_kernels::fpga
