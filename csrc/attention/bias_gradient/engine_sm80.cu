// SPDX-License-Identifier: MIT
#include "attention/bias_gradient/engine.h"

#include <optional>

#include "attention/bias_gradient/kernel.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention";

template <class T>
BiasFactors factors_of(const HeadRows& queries, const HeadRows& keys, std::int64_t dim) {
  return {{queries, keys}, static_cast<int>(dim), static_cast<int>(divide_up(dim, kBiasSlab<T>))};
}

template <class T>
void run_tiles(const Context& context, const AttentionBackwardProblem& p,
               const RowStatistics<float>* statistics) {
  const BiasGradientPlan plan(p);
  float* const dbias = static_cast<float*>(p.dbias.data);
  std::optional<Scratch> sums;
  if (plan.splits > 1) sums.emplace(kOp, context, plan.splits * p.dbias_count * sizeof(float));
  BiasGradient a{
      .problem = p,
      .bias = p.bias,
      .plan = plan,
      .factors = {factors_of<T>(p.q, p.k, p.dim), factors_of<T>(p.dout, p.v, p.value_dim)},
      .group = static_cast<int>(p.group()),
      .statistics = statistics,
      .sums = sums ? sums->as<float>() : dbias};
  a.problem.bias = {};
  launch(
      kOp, context,
      LaunchShape{.ctas = plan.ctas(), .threads = kBiasThreads, .shared_bytes = kBiasSharedBytes},
      &bias_gradient_kernel<T>, a);
  if (!sums) return;
  launch(kOp, context,
         LaunchShape{.ctas = divide_up(p.dbias_count, kBiasSumThreads), .threads = kBiasSumThreads},
         &bias_sum_kernel, static_cast<const float*>(sums->as<float>()), p.dbias_count, plan.splits,
         dbias);
}

template <class T>
void run_typed(const Context& context, const AttentionBackwardProblem& p,
               const RowStatistics<float>* statistics) {
  std::optional<Scratch> own;
  if (statistics == nullptr) {
    own.emplace(kOp, context, p.rows() * sizeof(RowStatistics<float>));
    make_row_statistics(context, p, own->as<void>());
    statistics = own->as<RowStatistics<float>>();
  }
  run_tiles<T>(context, p, statistics);
}

}  // namespace

void run_bias_gradient(const Context& context, const AttentionBackwardProblem& p,
                       const RowStatistics<float>* statistics) {
  if (p.dtype == DType::kFloat32) return run_typed<float>(context, p, statistics);
  if (p.dtype == DType::kFloat16) return run_typed<Half>(context, p, statistics);
  run_typed<BFloat16>(context, p, statistics);
}

}  // namespace transformer_kernels::cuda
