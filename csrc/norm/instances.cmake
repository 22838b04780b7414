# SPDX-License-Identifier: MIT
# The units that instantiate the engines of the norms on CUDA; see cmake/cuda.cmake.

set(forward "(const Context&, const NormForwardProblem&, std::size_t)")
set(backward "(const Context&, const NormBackwardProblem&, std::size_t)")
set(backward_without_plan "(const Context&, const NormBackwardProblem&)")
set(dropout_forward "(const Context&, const DropoutNormForwardProblem&, std::size_t)")
set(dropout_backward "(const Context&, const DropoutNormBackwardProblem&, std::size_t)")

tfk_cuda_instances(norm/rows/forward_typed norm/rows/forward.cuh
                   "run_norm_forward_rows<TFK_TYPE>${forward}")
tfk_cuda_instances(norm/rows/forward_bulk_sm90_typed norm/rows/forward.cuh
                   "run_norm_forward_bulk<TFK_TYPE>${forward}")
tfk_cuda_instances(norm/rows/forward_dropout_typed norm/rows/forward.cuh
                   "run_dropout_norm_forward_rows<TFK_TYPE>${dropout_forward}")
tfk_cuda_instances(norm/rows/forward_dropout_bulk_sm90_typed norm/rows/forward.cuh
                   "run_dropout_norm_forward_bulk<TFK_TYPE>${dropout_forward}")
tfk_cuda_instances(norm/rows/forward_mixed norm/rows/forward.cuh
                   "run_mixed_norm_forward_rows<Half>${dropout_forward}"
                   "run_mixed_norm_forward_rows<BFloat16>${dropout_forward}")
tfk_cuda_instances(norm/rows/forward_mixed_bulk_sm90 norm/rows/forward.cuh
                   "run_mixed_norm_forward_bulk<Half>${dropout_forward}"
                   "run_mixed_norm_forward_bulk<BFloat16>${dropout_forward}")

tfk_cuda_instances(norm/ring/forward_sm90a_typed norm/ring/forward.cuh
                   "run_norm_forward_ring<TFK_TYPE>${forward}")
tfk_cuda_instances(norm/ring/backward_sm90a_typed norm/ring/backward.cuh
                   "run_norm_backward_ring<TFK_TYPE>${backward}")
tfk_cuda_instances(norm/ring/backward_dropout_sm90a_typed norm/ring/backward.cuh
                   "run_dropout_norm_backward_ring<TFK_TYPE>${dropout_backward}")
tfk_cuda_instances(norm/ring/backward_mixed_sm90a norm/ring/backward.cuh
                   "run_mixed_norm_backward_ring<Half>${dropout_backward}"
                   "run_mixed_norm_backward_ring<BFloat16>${dropout_backward}")

tfk_cuda_instances(norm/chunk/forward_sm90a_typed norm/chunk/forward.cuh
                   "run_norm_forward_chunk<TFK_TYPE>${forward}")
tfk_cuda_instances(norm/chunk/backward_sm90a_typed norm/chunk/backward.cuh
                   "run_norm_backward_chunk<TFK_TYPE>${backward}")

tfk_cuda_instances(norm/direct/forward_typed norm/direct/forward.cuh
                   "run_norm_forward_direct<TFK_TYPE>${forward}")
tfk_cuda_instances(norm/direct/backward_typed norm/direct/backward.cuh
                   "run_norm_backward_direct<TFK_TYPE>${backward}")

tfk_cuda_instances(norm/plain/backward_typed norm/plain/backward.cuh
                   "run_norm_backward_plain<TFK_TYPE>${backward_without_plan}"
                   "sum_norm_bias_gradient<TFK_TYPE>${backward_without_plan}")
