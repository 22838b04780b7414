// SPDX-License-Identifier: MIT
// Layers of groups of rows as products, and the choice of an engine for each.
#include <array>
#include <type_traits>

#include "core/cuda/built.h"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "core/select.h"
#include "linear/cuda/engines.h"
#include "linear/cuda/grouped_engines.h"
#include "pointwise/problem.h"

namespace transformer_kernels::cuda {
namespace {

template <class Problem>
const char* no_refusal(const Context&, const Problem&) {
  return nullptr;
}

// Why Hopper's kernel was measured to take longer than the row behind it (docs/decisions/0022): one
// kernel of both products brings rows one by one, also where they lie in order.
template <class Problem>
const char* hopper_slower(const Context&, const Problem& p) {
  if constexpr (std::is_same_v<Problem, GroupedGatedProblem>) {
    const RowGroups& groups = p.gate.groups;
    const bool are_many = groups.rows >= 128 * groups.count;
    if (p.gate.a.index == nullptr && are_many) return "rows lie in order, which two products read";
  }
  return nullptr;
}

template <class Problem>
void run_plain_of_dtype(const Context& context, const Problem& p) {
  dispatch_float(p.dtype, [&]<class T>() { run_plain<T>(context, p); });
}
void run_plain_of_dtype(const Context& context, const GroupedDgatedProblem& p) {
  dispatch_float(p.product.dtype, [&]<class T>() { run_plain<T>(context, p); });
}

void multiply(const Context& context, const GroupedProduct& p);

// Two products and a pass. Rows that belong to no group are gated too.
void run_plain_of_dtype(const Context& context, const GroupedGatedProblem& p) {
  GroupedProduct gate = p.gate;
  GroupedProduct up = p.up;
  const std::int64_t numbers = p.keeps() ? 0 : gate.groups.rows * gate.cols;
  const Scratch memory(gate.op, context, 2 * numbers * size_of(gate.dtype));
  if (!p.keeps()) {
    gate.out = {memory.as<void>(), gate.cols};
    up.out = {memory.as<std::byte>() + numbers * size_of(gate.dtype), gate.cols};
  }
  multiply(context, gate);
  multiply(context, up);
  pointwise_forward(context, {.op = p.activation,
                              .dtype = gate.dtype,
                              .bias_dtype = gate.dtype,
                              .rows = gate.groups.rows,
                              .cols = gate.cols,
                              .x = gate.out,
                              .up = up.out,
                              .y = p.out,
                              .bias = nullptr,
                              .up_bias = nullptr});
}

// Best first. What this build lacks is not named.
template <class Problem>
constexpr auto engines() {
  using Refusal = const char* (*)(const Context&, const Problem&);
  using Run = void (*)(const Context&, const Problem&);
  std::array<Engine<Problem>, kBuildsSm90a + 1> table{};
  std::size_t next = 0;
  if constexpr (kBuildsSm90a) {
    table[next++] = {"hopper", static_cast<Refusal>(hopper_refusal), static_cast<Run>(run_hopper),
                     hopper_slower<Problem>};
  }
  table[next] = {"plain", no_refusal<Problem>, static_cast<Run>(run_plain_of_dtype)};
  return table;
}

template <class Problem>
void run_best(const char* op, const Context& context, const Problem& p) {
  static constexpr auto kEngines = engines<Problem>();
  const std::size_t chosen = choose(
      op, kEngines, p, [&](const Engine<Problem>& engine) { return engine.refusal(context, p); },
      [&](const Engine<Problem>& engine) {
        return engine.slower != nullptr ? engine.slower(context, p) : nullptr;
      });
  kEngines[chosen].run(context, p);
}

void multiply(const Context& context, const GroupedProduct& p) { run_best(p.op, context, p); }

}  // namespace

void grouped_linear_forward(const Context& context, const GroupedProduct& p) {
  multiply(context, p);
}

void grouped_linear_backward(const Context& context, const GroupedBackwardProblem& p) {
  if (p.dx.out.data != nullptr) multiply(context, p.dx);
  if (p.dweight.out.first.data != nullptr) run_best(p.dweight.op, context, p.dweight);
  if (p.dbias.dbias != nullptr) run_plain_of_dtype(context, p.dbias);
}

void grouped_gated_linear_forward(const Context& context, const GroupedGatedProblem& p) {
  run_best(p.gate.op, context, p);
}

void grouped_linear_dgated(const Context& context, const GroupedDgatedProblem& p) {
  run_best(p.product.op, context, p);
}

}  // namespace transformer_kernels::cuda
