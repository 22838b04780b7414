// SPDX-License-Identifier: MIT
// The choice of the engine that multiplies.
#include <algorithm>
#include <array>

#include "core/cuda/built.h"
#include "core/dispatch.h"
#include "core/select.h"
#include "linear/cuda/bias_gradient.h"
#include "linear/cuda/engines.h"

namespace transformer_kernels::cuda {
namespace {

const char* plain_refusal(const Context&, const Product&) { return nullptr; }

void run_plain_of_dtype(const Context& context, const Product& p) {
  dispatch_float(p.dtype, [&]<class T>() { run_plain<T>(context, p); });
}

template <void (*kRun)(const Context&, const Product&)>
void run_then_sum(const Context& context, const Product& p) {
  kRun(context, p);
  bias_gradient(context, p);
}

// Best first. What this build lacks is not named. Hopper's sums the rows of its result itself.
constexpr auto engines() {
  constexpr std::size_t kCount = kBuildsSm80 + kBuildsSm90a + 2;
  std::array<Engine<Product>, kCount> table{};
  std::size_t next = 0;
  if constexpr (kBuildsSm80) {
    table[next++] = {"few_rows", few_rows_refusal, run_then_sum<run_few_rows>};
  }
  if constexpr (kBuildsSm90a) table[next++] = {"hopper", hopper_refusal, run_hopper};
  table[next++] = {"cublaslt", cublaslt_refusal, run_then_sum<run_cublaslt>};
  table[next] = {"plain", plain_refusal, run_then_sum<run_plain_of_dtype>};
  return table;
}
constexpr auto kEngines = engines();

constexpr auto with_cublaslt_first() {
  auto table = kEngines;
  std::rotate(table.begin(), table.end() - 2, table.end() - 1);
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
  const std::size_t chosen = choose(
      p.op, table, p, [&](const Engine<Product>& engine) { return engine.refusal(context, p); });
  table[chosen].run(context, p);
}

}  // namespace transformer_kernels::cuda
