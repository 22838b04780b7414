# SPDX-License-Identifier: MIT
# The units that instantiate the engines of softmax on CUDA; see cmake/cuda.cmake.

set(forward "(const Context&, const SoftmaxForwardProblem&, std::size_t)")
set(backward "(const Context&, const SoftmaxBackwardProblem&, std::size_t)")

tfk_cuda_instances(softmax/rows/launch_typed softmax/rows/launch.cuh
                   "run_softmax_rows<TFK_TYPE>${forward}" "run_softmax_rows<TFK_TYPE>${backward}")
tfk_cuda_instances(softmax/rows/launch_bulk_sm90_typed softmax/rows/launch.cuh
                   "run_softmax_bulk<TFK_TYPE>${forward}" "run_softmax_bulk<TFK_TYPE>${backward}")
tfk_cuda_instances(softmax/chunk/kernels_sm90a_typed softmax/chunk/kernels.cuh
                   "run_softmax_chunk<TFK_TYPE>${forward}" "run_softmax_chunk<TFK_TYPE>${backward}")
tfk_cuda_instances(
  softmax/direct/kernels_typed softmax/direct/kernels.cuh
  "run_softmax_direct<TFK_TYPE>${forward}" "run_softmax_direct<TFK_TYPE>${backward}")
