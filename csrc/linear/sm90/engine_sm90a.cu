// SPDX-License-Identifier: MIT
// The products that Hopper's engine takes, and how it runs them.
#include <initializer_list>

#include "linear/sm90/parts.h"
#include "linear/sm90/products.cuh"

namespace transformer_kernels::cuda {
namespace {

bool is_aligned(const Product& p, const Matrix& matrix, std::int64_t inner, std::int64_t outer,
                std::int64_t step) {
  return fits_tensor_map(matrix_layout(p.dtype, matrix.data, inner, outer, step, 32, 1));
}

bool operands_fit(const Product& p) {
  const bool a_fits = major_of_a(p) == Major::kK
                          ? is_aligned(p, p.a, p.terms, p.rows, p.a.row_step)
                          : is_aligned(p, p.a, p.rows, p.terms, p.a.col_step);
  const bool b_fits = major_of_b(p) == Major::kK
                          ? is_aligned(p, p.b, p.terms, p.cols, p.b.col_step)
                          : is_aligned(p, p.b, p.cols, p.terms, p.b.row_step);
  return a_fits && b_fits;
}

// Without an activation results may lie anywhere.
bool results_fit(const Product& p) {
  if (!p.activation) return true;
  for (const Matrix& matrix : {p.out, p.kept, p.z}) {
    if (matrix.data != nullptr && !is_even(p, matrix)) return false;
  }
  return true;
}

bool has_bias_in_pairs(const Product& p) {
  return reinterpret_cast<std::uintptr_t>(p.bias) % (2 * size_of(p.bias_dtype)) == 0;
}

bool has_lines(const Product& p) {
  if (p.a.col_step != 1 && p.a.row_step != 1) return false;
  if (p.b.col_step != 1 && p.b.row_step != 1) return false;
  for (const Matrix& matrix : {p.out, p.kept, p.z}) {
    if (matrix.data != nullptr && matrix.col_step != 1) return false;
  }
  return true;
}

// The product of up: gate's product with up's own operands and results in their place.
Product product_of_up(const GatedProduct& p) {
  Product up = p.gate;
  if (!p.reads_z()) up.b = p.up.b;
  up.kept = p.up.kept;
  up.out = p.up.out;
  up.z = p.up.z;
  up.bias = p.up.bias;
  return up;
}

}  // namespace

const char* hopper_refusal(const Context& context, const Product& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // coordinates of TMA are int
  if (device_limits(context.device.index).architecture != 90) return "needs sm_90";
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
  if (!operands_fit(p) || !results_fit(p)) return "rows are not 16-byte aligned";
  if (!has_bias_in_pairs(p)) return "bias is not in aligned pairs";
  if ((p.accumulates || p.out_dtype != p.dtype) && !runs_in_parts(context, p)) {
    return "it widens its result or adds to it, and not in parts of the terms";
  }
  return nullptr;
}

const char* hopper_refusal(const Context& context, const GatedProduct& p) {
  const Product up = product_of_up(p);
  for (const Product* each : std::initializer_list<const Product*>{&p.gate, &up}) {
    if (const char* refusal = hopper_refusal(context, *each)) return refusal;
    if (!p.reads_z() && major_of_b(*each) != Major::kK) return "terms of a weight are not together";
  }
  return p.gate.rows <= kFewRows ? "there are few rows" : nullptr;
}

void run_hopper(const Context& context, const GatedProduct& p) {
  if (p.reads_z()) return launch_gated(context, p, GatedSloped{});
  return p.gate.kept.data != nullptr ? launch_gated(context, p, GatedKept{})
                                     : launch_gated(context, p, Gated{});
}

void run_hopper(const Context& context, const Product& p) {
  if (!p.activation) return run_gemm_bias(context, p);
  if (p.z.data != nullptr) return run_gemm_slope(context, p);
  return p.kept.data != nullptr ? launch_activated(context, p, ActivatedKept{})
                                : launch_activated(context, p, Activated{});
}

}  // namespace transformer_kernels::cuda
