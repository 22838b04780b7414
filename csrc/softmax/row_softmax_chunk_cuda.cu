// SPDX-License-Identifier: MIT
#include "softmax/row_softmax_chunk.h"

#include "core/cuda/chunk_launch.cuh"
#include "softmax/row_softmax_chunk.cuh"

namespace transformer_kernels::cuda {
namespace {

template <class T, bool kLog, class Plan>
auto kernel_for(const SoftmaxForwardProblem&) {
  return &softmax_forward_chunk_kernel<T, kLog, Plan>;
}
template <class T, bool kLog, class Plan>
auto kernel_for(const SoftmaxBackwardProblem&) {
  return &softmax_backward_chunk_kernel<T, kLog, Plan>;
}

template <const auto& kTable, class Problem>
bool run(const char* op, const Context& context, const Problem& problem) {
  return run_in_chunks<kTable>(
      op, context, problem, chunk_load(problem),
      [&]<class T, class Plan>(const ChunkShape& shape, const LaunchShape& launch_shape) {
        dispatch_bool(problem.log, [&]<bool kLog>() {
          launch(op, context, launch_shape, kernel_for<T, kLog, Plan>(problem),
                 SoftmaxChunkCall<Problem>{problem, shape});
        });
      });
}

}  // namespace

bool softmax_forward_in_chunks(const char* op, const Context& context,
                               const SoftmaxForwardProblem& problem) {
  return run<kSoftmaxForwardChunks>(op, context, problem);
}

bool softmax_backward_in_chunks(const char* op, const Context& context,
                                const SoftmaxBackwardProblem& problem) {
  return run<kSoftmaxBackwardChunks>(op, context, problem);
}

}  // namespace transformer_kernels::cuda
