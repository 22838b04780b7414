// SPDX-License-Identifier: MIT
#include "core/cuda/chunk_launch.cuh"
#include "norm/row_norm_backward_chunk.cuh"
#include "norm/row_norm_backward_chunk.h"

namespace transformer_kernels::cuda {
namespace {

template <class T, bool kCenter, class Plan>
void run(const char* op, const Context& context, const NormBackwardProblem& p,
         const ChunkShape& shape, const LaunchShape& launch_shape) {
  const bool parameters = p.dweight != nullptr || p.dbias != nullptr;
  const std::int64_t pitch = rounded_up(p.cols, 4);
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
  return run_in_chunks<kNormBackwardChunks>(
      op, context, problem, chunk_load(problem),
      [&]<class T, class Plan>(const ChunkShape& shape, const LaunchShape& launch_shape) {
        dispatch_bool(problem.center, [&]<bool kCenter>() {
          constexpr unsigned kTraits = norm_traits(kCenter, false, sizeof(T), sizeof(T));
          if constexpr ((Plan::row.traits & ~kTraits) == 0) {
            run<T, kCenter, Plan>(op, context, problem, shape, launch_shape);
          }
        });
      });
}

}  // namespace transformer_kernels::cuda
