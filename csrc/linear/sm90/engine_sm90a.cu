// SPDX-License-Identifier: MIT
// The products that Hopper's engine takes, and how it runs them.
#include "linear/cuda/tensor_cores.h"
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

}  // namespace

const char* hopper_refusal(const Context& context, const Product& p) {
  if (device_limits(context.device.index).architecture != 90) return "needs sm_90";
  if (const char* refusal = tensor_core_refusal(p)) return refusal;
  if (!operands_fit(p) || !results_fit(p)) return "rows are not 16-byte aligned";
  if ((p.accumulates || p.out_dtype != p.dtype) && !runs_in_parts(context, p)) {
    return "it widens its result or adds to it, and not in parts of the terms";
  }
  return nullptr;
}

const char* hopper_refusal(const Context& context, const GatedProduct& p) {
  return gated_refusal(p, [&](const Product& each) { return hopper_refusal(context, each); });
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
