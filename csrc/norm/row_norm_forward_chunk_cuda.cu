// SPDX-License-Identifier: MIT
#include "core/cuda/chunk_launch.cuh"
#include "norm/row_norm_forward_chunk.cuh"
#include "norm/row_norm_forward_chunk.h"

namespace transformer_kernels::cuda {

bool norm_forward_in_chunks(const char* op, const Context& context,
                            const NormForwardProblem& problem) {
  return run_in_chunks<kNormForwardChunks>(
      op, context, problem, chunk_load(problem),
      [&]<class T, class Plan>(const ChunkShape& shape, const LaunchShape& launch_shape) {
        dispatch_bool(problem.center, [&]<bool kCenter>() {
          launch(op, context, launch_shape, &norm_forward_chunk_kernel<T, kCenter, Plan>,
                 NormForwardChunkCall{problem, shape});
        });
      });
}

}  // namespace transformer_kernels::cuda
