// SPDX-License-Identifier: MIT
// The products that Ampere's engine takes, and how it runs them.
#include "linear/cuda/tensor_cores.h"
#include "linear/sm80/products.cuh"

namespace transformer_kernels::cuda {
namespace {

constexpr int kPack = 8;  // elements of 16 bytes

// Whether rows `step` apart begin at packs.
bool in_packs(const void* data, std::int64_t step) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && step % kPack == 0;
}

bool operands_fit(const Product& p) {
  return in_packs(p.a.data, major_of_a(p) == Major::kK ? p.a.row_step : p.a.col_step) &&
         in_packs(p.b.data, major_of_b(p) == Major::kK ? p.b.col_step : p.b.row_step);
}

// Without an activation results may lie anywhere.
bool results_fit(const Product& p) {
  if (!p.activation) return true;
  for (const Matrix& matrix : {p.out, p.kept, p.z}) {
    if (matrix.data != nullptr && !in_packs(matrix.data, matrix.row_step)) return false;
  }
  return p.cols % kPack == 0;
}

}  // namespace

const char* ampere_refusal(const Context& context, const Product& p) {
  if (device_limits(context.device.index).architecture < 80) return "needs sm_80";
  if (const char* refusal = tensor_core_refusal(p)) return refusal;
  return operands_fit(p) && results_fit(p) ? nullptr : "rows are not 16-byte aligned";
}

const char* ampere_refusal(const Context& context, const GatedProduct& p) {
  return gated_refusal(p, [&](const Product& each) { return ampere_refusal(context, each); });
}

void run_ampere(const Context& context, const GatedProduct& p) {
  if (p.reads_z()) return ampere::launch_gated(context, p, GatedSloped{});
  return p.gate.kept.data != nullptr ? ampere::launch_gated(context, p, GatedKept{})
                                     : ampere::launch_gated(context, p, Gated{});
}

void run_ampere(const Context& context, const Product& p) {
  if (!p.activation) return ampere::run_sums(context, p);
  if (p.z.data != nullptr) return ampere::run_slope(context, p);
  return p.kept.data != nullptr ? ampere::launch_activated(context, p, ActivatedKept{})
                                : ampere::launch_activated(context, p, Activated{});
}

}  // namespace transformer_kernels::cuda
