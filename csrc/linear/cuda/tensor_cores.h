// SPDX-License-Identifier: MIT
// The engines that multiply on tensor cores refuse these products alike.
#pragma once

#include "core/rounding.h"
#include "linear/cuda/products.cuh"

namespace transformer_kernels::cuda {

inline bool has_lines(const Product& p) {
  if (p.a.col_step != 1 && p.a.row_step != 1) return false;
  if (p.b.col_step != 1 && p.b.row_step != 1) return false;
  for (const Matrix& matrix : {p.out, p.kept, p.z}) {
    if (matrix.data != nullptr && matrix.col_step != 1) return false;
  }
  return true;
}

inline bool has_bias_in_pairs(const Product& p) {
  return reinterpret_cast<std::uintptr_t>(p.bias) % (2 * size_of(p.bias_dtype)) == 0;
}

// Why none of them takes a product; null where its dtype, its sizes and the order of its operands
// are no reason.
inline const char* tensor_core_refusal(const Product& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // places are int
  if (p.dtype != DType::kFloat16 && p.dtype != DType::kBFloat16) return "takes 16-bit dtypes";
  if (p.terms == 0) return "there are no terms";
  if (std::max({p.rows, p.cols, p.terms}) > kMost) return "more than 2^30 rows, columns or terms";
  if (divide_up(p.rows, 128) * divide_up(p.cols, 128) > kMost) {
    return "too many tiles";
  }
  if (!has_lines(p)) return "elements of no row or column lie together";
  if (major_of_a(p) == Major::kOther && major_of_b(p) == Major::kK) {
    return "the order of a in memory is not built with that of b";
  }
  if (p.activation && major_of_a(p) == Major::kOther) return "rows of x are not together";
  return has_bias_in_pairs(p) ? nullptr : "bias is not in aligned pairs";
}

// The product of up: gate's product with up's own operands and results in their place.
inline Product product_of_up(const GatedProduct& p) {
  Product up = p.gate;
  if (!p.reads_z()) up.b = p.up.b;
  up.kept = p.up.kept;
  up.out = p.up.out;
  up.z = p.up.z;
  up.bias = p.up.bias;
  return up;
}

// Why an engine does not take two products, of which `refusal` speaks of each.
template <class Refusal>
const char* gated_refusal(const GatedProduct& p, Refusal&& refusal) {
  const Product up = product_of_up(p);
  for (const Product* each : {&p.gate, &up}) {
    if (const char* reason = refusal(*each)) return reason;
    if (!p.reads_z() && major_of_b(*each) != Major::kK) return "terms of a weight are not together";
  }
  return p.gate.rows <= kFewRows ? "there are few rows" : nullptr;
}

}  // namespace transformer_kernels::cuda
