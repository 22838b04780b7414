// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/layer_norm.h"

#include "torch/norm/norm_ops.h"

namespace transformer_kernels::torch_ops {
namespace {

struct LayerNorm {
  static constexpr const char* kName = "layer_norm";
  using Forward = LayerNormForward;
  using Backward = LayerNormBackward;
  static void forward(const Context& c, const Forward& a) { layer_norm_forward(c, a); }
  static void backward(const Context& c, const Backward& a) { layer_norm_backward(c, a); }
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { NormOps<LayerNorm>::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { NormOps<LayerNorm>::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) NormOps<LayerNorm>::implement(m);
}

}  // namespace transformer_kernels::torch_ops
