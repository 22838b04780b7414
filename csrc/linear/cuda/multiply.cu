// SPDX-License-Identifier: MIT
// The choice of the engine that multiplies.
#include <algorithm>
#include <array>

#include "core/cuda/built.h"
#include "core/cuda/device.h"
#include "core/dispatch.h"
#include "core/own_kernels.h"
#include "core/select.h"
#include "linear/cuda/bias_gradient.h"
#include "linear/cuda/engines.h"

namespace transformer_kernels::cuda {
namespace {

const char* plain_refusal(const Context&, const Product&) { return nullptr; }
const char* plain_slower(const Context&, const Product&) { return "it serves what no other takes"; }

const char* few_rows_slower(const Context& context, const Product& p) {
  return slower_with_few_rows(p.rows, p.cols * p.terms, p.b.row_step != 1,
                              device_limits(context.device.index).architecture);
}

const char* hopper_slower(const Context& context, const Product& p) {
  const int processors = device_limits(context.device.index).processors;
  const bool sums_over_rows_of_x = p.a.col_step != 1;
  return sums_over_rows_of_x ? slower_gradient_on_hopper(p.rows, p.cols, processors)
                             : slower_on_hopper(p.rows, p.cols, processors);
}

// Ampere's engine stands before cuBLASLt for products with an activation, and behind it for others.
const char* fused_ampere_refusal(const Context& context, const Product& p) {
  return p.activation ? ampere_refusal(context, p) : "there is no activation";
}
const char* fused_ampere_slower(const Context& context, const Product& p) {
  if (device_limits(context.device.index).architecture == 90) return "Hopper has faster products";
  return slower_on_ampere(p.rows, p.terms, true);
}

void run_plain_of_dtype(const Context& context, const Product& p) {
  dispatch_float(p.dtype, [&]<class T>() { run_plain<T>(context, p); });
}

template <void (*kRun)(const Context&, const Product&)>
void run_then_sum(const Context& context, const Product& p) {
  kRun(context, p);
  bias_gradient(context, p);
}

// Best first. What this build lacks is not named. Where results are activated, Hopper's and
// Ampere's sum the rows of theirs themselves.
constexpr auto engines() {
  constexpr std::size_t kCount = 3 * kBuildsSm80 + 2 * kBuildsSm90a + 2;
  std::array<Engine<Product>, kCount> table{};
  std::size_t next = 0;
  if constexpr (kBuildsSm90a) {
    table[next++] = {"streamed_rows", ByName<Product>::refusal<streamed_rows_refusal>,
                     run_then_sum<run_streamed_rows>};
  }
  if constexpr (kBuildsSm80) {
    table[next++] = {"few_rows", few_rows_refusal, run_then_sum<run_few_rows>, few_rows_slower};
  }
  if constexpr (kBuildsSm90a) {
    table[next++] = {"hopper", hopper_refusal, run_hopper, hopper_slower};
  }
  if constexpr (kBuildsSm80) {
    table[next++] = {"ampere_fused", fused_ampere_refusal, run_ampere, fused_ampere_slower};
  }
  table[next++] = {"cublaslt", cublaslt_refusal, run_then_sum<run_cublaslt>};
  if constexpr (kBuildsSm80) table[next++] = {"ampere", ampere_refusal, run_ampere};
  table[next] = {"plain", plain_refusal, run_then_sum<run_plain_of_dtype>, plain_slower};
  return table;
}
constexpr auto kEngines = engines();

constexpr auto with_cublaslt_first() {
  auto table = kEngines;
  const auto cublaslt =
      std::ranges::find(table, &run_then_sum<run_cublaslt>, &Engine<Product>::run);
  std::rotate(table.begin(), cublaslt, cublaslt + 1);
  return table;
}
constexpr auto kCublasLtFirst = with_cublaslt_first();

void multiply_by_algorithm(const Context& context, const Product& p) {
  const char* const refusal = cublaslt_refusal(context, p);
  check_value(refusal == nullptr, p.op, ": algorithm is ", p.algorithm,
              ", expected another: ", refusal ? refusal : "");
  if (log_dispatch()) {
    log_line(concat(p.op, " ", describe(p), ": cublaslt runs by algorithm ", p.algorithm));
  }
  run_then_sum<run_cublaslt>(context, p);
}

}  // namespace

void multiply(const Context& context, const Product& p) {
  if (leaves_out(p)) return bias_gradient(context, p);
  if (p.algorithm >= 0) return multiply_by_algorithm(context, p);
  const auto& table = p.algorithm == kPreferCublasLt ? kCublasLtFirst : kEngines;
  const bool is_chosen = OwnKernels::are_wanted();
  const std::size_t chosen = choose(
      p.op, table, p, [&](const Engine<Product>& engine) { return engine.refusal(context, p); },
      [&](const Engine<Product>& engine) {
        const bool has_rule = engine.slower != nullptr && !is_chosen;
        return has_rule ? engine.slower(context, p) : nullptr;
      },
      !is_chosen && p.algorithm != kPreferCublasLt);
  table[chosen].run(context, p);
}

}  // namespace transformer_kernels::cuda
