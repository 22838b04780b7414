// SPDX-License-Identifier: MIT
#include "core/cuda/chunk_launch.cuh"
#include "core/select.h"
#include "norm/row_norm_forward_chunk.cuh"
#include "norm/row_norm_forward_chunk.h"

namespace transformer_kernels::cuda {
namespace {

// A row of the plan table as a type: what a kernel takes as its template argument.
template <std::size_t kIndex>
struct PlanAt {
  static constexpr ChunkPlan plan = kNormForwardChunks[kIndex];
};

}  // namespace

bool norm_forward_in_chunks(const char* op, const Context& context,
                            const NormForwardProblem& problem) {
  const DeviceLimits& device = device_limits(context.device.index);
  const auto chosen = find_kernel(op, kNormForwardChunks, problem, [&](const ChunkPlan& plan) {
    return norm_chunk_refusal(plan, problem, device);
  });
  if (!chosen) return false;
  const ChunkPlan& plan = kNormForwardChunks[*chosen];
  const ChunkLoad load = chunk_load(problem);
  const ChunkShape shape = chunk_shape(plan, load);
  dispatch_index<std::size(kNormForwardChunks)>(*chosen, [&]<std::size_t kIndex>() {
    using Plan = PlanAt<kIndex>;
    dispatch_chunk_type<Plan>(problem.dtype, [&]<class T>() {
      dispatch_bool(problem.center, [&]<bool kCenter>() {
        launch(op, context, chunk_launch(plan, shape, load, device),
               &norm_forward_chunk_kernel<T, kCenter, Plan>, NormForwardChunkCall{problem, shape});
      });
    });
  });
  return true;
}

}  // namespace transformer_kernels::cuda
