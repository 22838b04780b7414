# SPDX-License-Identifier: MIT
# The units that instantiate the kernels of cross entropy on CUDA; see cmake/cuda.cmake.

set(forward "(const Context&, const LossCall&, std::size_t)")

tfk_cuda_instances(loss/rows_typed loss/cross_entropy_forward.cuh
                   "run_loss_rows<TFK_TYPE, false>${forward}"
                   "run_loss_rows<TFK_TYPE, true>${forward}")
tfk_cuda_instances(loss/bulk_sm90_typed loss/cross_entropy_forward.cuh
                   "run_loss_bulk<TFK_TYPE, false>${forward}"
                   "run_loss_bulk<TFK_TYPE, true>${forward}")
tfk_cuda_instances(
  loss/backward_typed loss/cross_entropy_backward.cuh
  "run_loss_backward<TFK_TYPE>(const Context&, const CrossEntropyBackwardProblem&, std::size_t)"
  "run_scale_gradient<TFK_TYPE>(const Context&, const ScaleGradientProblem&, std::size_t)")
