// SPDX-License-Identifier: MIT
#include <array>

#include "attention/common/tail.cuh"
#include "attention/plain/engine.h"
#include "attention/sm80/engine.h"
#include "attention/sm90/backward/engine.h"
#include "attention/sm90/forward/engine.h"
#include "core/check.h"
#include "core/cuda/built.h"
#include "core/cuda/launch.cuh"
#include "core/dispatch.h"
#include "core/select.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention";

// Best first: Hopper's, those for the tensor cores of every architecture, what takes the rest. What
// this build lacks is not named.
template <class Problem, std::size_t kHopper, std::size_t kTensorCore>
constexpr auto in_order(const std::array<AttentionEngine<Problem>, kHopper>& hopper,
                        const std::array<AttentionEngine<Problem>, kTensorCore>& tensor_core,
                        const AttentionEngine<Problem>& plain) {
  constexpr std::size_t kFirst = kBuildsSm90a ? kHopper : 0;
  constexpr std::size_t kSecond = kBuildsSm80 ? kTensorCore : 0;
  std::array<const AttentionEngine<Problem>*, kFirst + kSecond + 1> engines{};
  for (std::size_t i = 0; i != kFirst; ++i) engines[i] = &hopper[i];
  for (std::size_t i = 0; i != kSecond; ++i) engines[kFirst + i] = &tensor_core[i];
  engines.back() = &plain;
  return engines;
}
constexpr auto kForwardEngines =
    in_order(kHopperForwardEngines, kTensorCoreForwardEngines, kPlainForwardEngine);
constexpr auto kBackwardEngines =
    in_order(kHopperBackwardEngines, kTensorCoreBackwardEngines, kPlainBackwardEngine);

template <std::size_t kEngines, class Problem>
void run_best(const std::array<const AttentionEngine<Problem>*, kEngines>& engines,
              const Context& context, const Problem& problem) {
  constexpr std::int64_t kMostRows = 0x7fffffff;
  check_value(problem.queries <= kMostRows && problem.keys <= kMostRows, kOp,
              ": a sequence has more than ", kMostRows, " rows, which CUDA kernels do not take");
  const DeviceLimits& device = device_limits(context.device.index);
  // The last row alone has to know what to do without a score.
  const bool empty = problem.rows() == 0 || problem.keys == 0 || problem.batch == 0;
  const std::size_t chosen = choose(kOp, engines, problem, [&](const auto* engine) {
    return empty && engine != engines.back() ? "there is no score"
                                             : engine->refusal(problem, device);
  });
  engines[chosen]->run(context, problem);
}

Tail tail_of_queries(const AttentionProblem& p, const HeadRows& result, std::int64_t dim) {
  return {result, p.q_offsets + p.batch, p.queries, p.heads, dim};
}
Tail tail_of_keys(const AttentionProblem& p, const HeadRows& result, std::int64_t dim) {
  return {result, p.k_offsets + p.batch, p.keys, p.kv_heads, dim};
}

LaunchShape tail_shape(const Context& context) {
  return {.ctas = device_limits(context.device.index).processors, .threads = kTailThreads};
}

void clear_tail(const Context& context, DType dtype, const Tail& tail) {
  dispatch_float(dtype, [&]<class T>() {
    launch(kOp, context, tail_shape(context), &clear_tail_kernel<T>, tail);
  });
}

void fill_tail(const Context& context, const AttentionForwardProblem& p, void* statistic,
               double value) {
  if (statistic == nullptr) return;
  const Tail tail = tail_of_queries(p, {}, 0);
  dispatch_float(accumulate_dtype(p.dtype), [&]<class T>() {
    using A = accumulate_t<T>;
    launch(kOp, context, tail_shape(context), &fill_tail_kernel<A>, static_cast<A*>(statistic),
           static_cast<A>(value), tail);
  });
}

}  // namespace

void attention_forward(const Context& context, const AttentionForwardProblem& p) {
  run_best(kForwardEngines, context, p);
  if (p.q_offsets == nullptr) return;
  clear_tail(context, p.dtype, tail_of_queries(p, p.out, p.value_dim));
  fill_tail(context, p, p.lse, -HUGE_VAL);
  fill_tail(context, p, p.lse_rest, 0);
}

void attention_backward(const Context& context, const AttentionBackwardProblem& p) {
  run_best(kBackwardEngines, context, p);
  if (p.q_offsets == nullptr) return;
  clear_tail(context, p.dtype, tail_of_queries(p, p.dq, p.dim));
  clear_tail(context, p.dtype, tail_of_keys(p, p.dk, p.dim));
  clear_tail(context, p.dtype, tail_of_keys(p, p.dv, p.value_dim));
}

}  // namespace transformer_kernels::cuda
