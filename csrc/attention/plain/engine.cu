// SPDX-License-Identifier: MIT
#include "attention/plain/engine.h"

#include "attention/plain/backward.cuh"
#include "attention/plain/forward.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/row_plan.h"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention";

// Everything that fits: float64 takes more shared memory than sm_75 has.
template <class Problem>
const char* refusal(const Problem& p, const DeviceLimits& device) {
  const std::size_t bytes =
      p.dtype == DType::kFloat64 ? sizeof(PlainShared<double>) : sizeof(PlainShared<float>);
  return bytes > static_cast<std::size_t>(device.shared_bytes_per_cta)
             ? "its tiles take more shared memory than the device has"
             : nullptr;
}

// Calls body.operator()<kGroups>(slices): CTAs that hold kGroups tiles of columns, and how many of
// them share a row of `dim` columns. In double precision registers hold one tile alone.
template <class T, class Body>
void dispatch_columns(std::int64_t dim, Body&& body) {
  constexpr int kMost = sizeof(T) < 8 ? 4 : 1;
  const std::int64_t groups = divide_up(dim, kPlainTile);
  const int slices = static_cast<int>(divide_up(groups, kMost));
  if constexpr (kMost > 1) {
    if (groups == 1) return body.template operator()<1>(slices);
    if (groups == 2) return body.template operator()<2>(slices);
  }
  body.template operator()<kMost>(slices);
}

template <class T, class... Parameters>
void launch_tiles(const Context& context, std::int64_t ctas, void (*kernel)(Parameters...),
                  Parameters... parameters) {
  if (ctas == 0) return;
  const LaunchShape shape{
      .ctas = ctas, .threads = kPlainThreads, .shared_bytes = sizeof(PlainShared<accumulate_t<T>>)};
  launch(kOp, context, shape, kernel, parameters...);
}

void run_forward(const Context& context, const AttentionForwardProblem& p) {
  const RowBlocks blocks{p.q_offsets, p.batch, p.queries, kPlainTile};
  dispatch_float(p.dtype, [&]<class T>() {
    dispatch_columns<T>(p.value_dim, [&]<int kGroups>(int slices) {
      launch_tiles<T>(context, blocks.count() * p.heads * slices, &plain_forward_kernel<T, kGroups>,
                      p, slices);
    });
  });
}

template <class T, PlainGradient kOf>
void run_gradient(const Context& context, const PlainBackward& p) {
  constexpr bool kKeysOwn = kOf != PlainGradient::kQ;
  const RowBlocks blocks{kKeysOwn ? p.k_offsets : p.q_offsets, p.batch,
                         kKeysOwn ? p.keys : p.queries, kPlainTile};
  const std::int64_t heads = kKeysOwn ? p.kv_heads : p.heads;
  dispatch_columns<T>(kOf == PlainGradient::kV ? p.value_dim : p.dim, [&]<int kGroups>(int slices) {
    launch_tiles<T>(context, blocks.count() * heads * slices,
                    &plain_backward_kernel<T, kGroups, kOf>, p, slices);
  });
}

void run_backward(const Context& context, const AttentionBackwardProblem& problem) {
  dispatch_float(problem.dtype, [&]<class T>() {
    using Statistics = RowStatistics<accumulate_t<T>>;
    const std::int64_t rows = std::max<std::int64_t>(problem.rows(), 1);
    const Scratch statistics(kOp, context, rows * sizeof(Statistics));
    const PlainBackward p{problem, statistics.as<void>()};
    make_row_statistics(context, problem, statistics.as<void>());
    run_gradient<T, PlainGradient::kQ>(context, p);
    run_gradient<T, PlainGradient::kK>(context, p);
    run_gradient<T, PlainGradient::kV>(context, p);
    if (p.dbias_count > 0) {
      launch_tiles<T>(context, PlainBiasGrid(p).ctas(), &plain_bias_kernel<T>, p);
    }
    make_sink_gradients(context, problem, statistics.as<void>());
  });
}

}  // namespace

const AttentionEngine<AttentionForwardProblem> kPlainForwardEngine = {
    "plain", {kPlainTile, kPlainTile}, &refusal<AttentionForwardProblem>, &run_forward};
const AttentionEngine<AttentionBackwardProblem> kPlainBackwardEngine = {
    "plain", {kPlainTile, kPlainTile}, &refusal<AttentionBackwardProblem>, &run_backward};

}  // namespace transformer_kernels::cuda
