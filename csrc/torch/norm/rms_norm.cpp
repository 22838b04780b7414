// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/rms_norm.h"

#include "torch/norm/norm_ops.h"

namespace transformer_kernels::torch_ops {
namespace {

struct RmsNorm {
  static constexpr const char* kName = "rms_norm";
  using Forward = RmsNormForward;
  using Backward = RmsNormBackward;
  static void forward(const Context& c, const Forward& a) { rms_norm_forward(c, a); }
  static void backward(const Context& c, const Backward& a) { rms_norm_backward(c, a); }
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { NormOps<RmsNorm>::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { NormOps<RmsNorm>::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) NormOps<RmsNorm>::implement(m);
}

}  // namespace transformer_kernels::torch_ops
