// SPDX-License-Identifier: MIT
// Requirements that the engines of few rows share (sm80/few_rows.cuh, sm90/streamed_rows.cuh).
#pragma once

#include <algorithm>
#include <cstdlib>

#include "core/cuda/device.h"
#include "linear/cuda/engines.h"
#include "linear/cuda/scale.cuh"

namespace transformer_kernels::cuda {

inline constexpr std::int64_t kMostTerms = std::int64_t{1}
                                           << 22;  // so that groups are found by a product

inline bool is_aligned(const void* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

// A step in elements whose bytes are counted in int.
inline bool is_short(std::int64_t step) { return std::abs(step) < std::int64_t{1} << 28; }

// The requirements of products with any kind of weight.
inline const char* refusal_of_rows(const Context& context, const Product& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // columns and chunks are counted in int
  if (device_limits(context.device.index).architecture < 80) return "needs sm_80";
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) return "takes 16-bit dtypes";
  if (p.rows > kFewRows) return "there are more than 16 rows";
  if (p.terms == 0) return "there are no terms";
  if (std::max(p.terms, p.cols) > kMost) return "more than 2^30 columns or terms";
  if (p.terms % 8 != 0 || p.a.col_step != 1 || !is_aligned(p.a.data, 16) ||
      (p.rows > 1 && p.a.row_step % 8 != 0)) {
    return "rows of x are not 16-byte aligned";
  }
  return nullptr;
}

inline bool has_lines_of_columns(const Product& p) {
  return p.b.row_step == 1 && p.b.col_step % 8 == 0 && is_aligned(p.b.data, 16);
}
// 1 over the chunks of a group, as GroupScales has it: exact up to 2^16 chunks.
inline std::uint32_t groups_of_a_chunk(std::int64_t chunks) {
  constexpr std::int64_t kOne = std::int64_t{1} << 32;
  return chunks == 1 ? 0 : static_cast<std::uint32_t>(kOne / chunks + 1);
}

// Scales of a weight that is read in chunks of `chunk` terms, each of one group.
inline GroupScales scales_of(const QuantizedMatrix& weight, std::int64_t chunk) {
  const int bytes = static_cast<int>(size_of(weight.scales_dtype));
  return {.data = weight.scales,
          .step_bytes = static_cast<int>(weight.scales_stride * bytes),
          .bytes = bytes,
          .dtype = weight.scales_dtype,
          .groups_of_a_chunk = groups_of_a_chunk(weight.group / chunk)};
}

// Whether scales may be read by aligned words of four bytes.
inline bool has_whole_words(const QuantizedMatrix& weight) {
  const std::int64_t each = size_of(weight.scales_dtype);
  return is_aligned(weight.scales, 4) && weight.scales_stride * each % 4 == 0;
}

}  // namespace transformer_kernels::cuda
