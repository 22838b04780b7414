// SPDX-License-Identifier: MIT
#include "core/cuda/chunk_launch.cuh"
#include "core/select.h"
#include "norm/row_norm_backward_chunk.cuh"
#include "norm/row_norm_backward_chunk.h"

namespace transformer_kernels::cuda {
namespace {

// A row of the plan table as a type: what a kernel takes as its template argument.
template <std::size_t kIndex>
struct PlanAt {
  static constexpr ChunkPlan plan = kNormBackwardChunks[kIndex].plan;
  static constexpr unsigned traits = kNormBackwardChunks[kIndex].traits;
};

template <class T, bool kCenter, class Plan>
void run(const char* op, const Context& context, const NormBackwardProblem& p) {
  const DeviceLimits& device = device_limits(context.device.index);
  const ChunkLoad load = chunk_load(p);
  const ChunkShape shape = chunk_shape(Plan::plan, load);
  const LaunchShape launch_shape = chunk_launch(Plan::plan, shape, load, device);
  const bool parameters = p.dweight != nullptr || p.dbias != nullptr;
  const std::int64_t pitch = divide_up(p.cols, 4) * 4;
  const std::size_t bytes = parameters ? launch_shape.ctas * 2 * pitch * sizeof(float) : 0;
  const Scratch scratch(op, context, std::max<std::size_t>(bytes, 16));
  float* const partial = parameters ? scratch.as<float>() : nullptr;
  launch(op, context, launch_shape, &norm_backward_chunk_kernel<T, kCenter, Plan>,
         NormBackwardChunkCall{p, shape, partial, pitch});
  if (!parameters) return;
  const PartialGradients<float> sums{
      partial, static_cast<int>(launch_shape.ctas), pitch, p.cols, p.dweight, p.dbias};
  if (p.weight_dtype == p.dtype) {
    launch_column_sum<T, float>(op, context, sums, true);
  } else {
    launch_column_sum<float, float>(op, context, sums, true);
  }
}

}  // namespace

bool norm_backward_in_chunks(const char* op, const Context& context,
                             const NormBackwardProblem& problem) {
  const DeviceLimits& device = device_limits(context.device.index);
  const auto chosen =
      find_kernel(op, kNormBackwardChunks, problem, [&](const NormBackwardChunkPlan& entry) {
        return norm_chunk_refusal(entry, problem, device);
      });
  if (!chosen) return false;
  dispatch_index<std::size(kNormBackwardChunks)>(*chosen, [&]<std::size_t kIndex>() {
    using Plan = PlanAt<kIndex>;
    dispatch_chunk_type<Plan>(problem.dtype, [&]<class T>() {
      dispatch_bool(problem.center, [&]<bool kCenter>() {
        if constexpr ((Plan::traits & ~norm_traits(kCenter, false, sizeof(T), sizeof(T))) == 0) {
          run<T, kCenter, Plan>(op, context, problem);
        }
      });
    });
  });
  return true;
}

}  // namespace transformer_kernels::cuda
