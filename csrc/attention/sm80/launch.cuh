// SPDX-License-Identifier: MIT
// Launches of the tensor-core engine for elements of type T; each type is compiled on its own.
#pragma once

#include "attention/bias_gradient/engine.h"
#include "attention/sm80/backward.cuh"
#include "attention/sm80/forward.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"

namespace transformer_kernels::cuda {

inline constexpr const char* kTensorCoreOp = "attention";

template <class T, int kIndex>
void run_tensor_core_forward(const Context& context, const AttentionForwardProblem& p) {
  constexpr bool kHasFeatures = kTensorCoreForwardPlans[kIndex].has_features;
  launch_tensor_core_forward<T, ForwardTileOf<kIndex>, kHasFeatures>(kTensorCoreOp, context, p);
}

template <class T, int kIndex>
void run_gradients(const Context& context, const TensorCoreBackward& a) {
  using enum BackwardPart;
  using Keys = KeyTileOf<kIndex>;
  using Queries = QueryTileOf<kIndex>;
  constexpr bool kHasFeatures = kTensorCoreBackwardPlans[kIndex].has_features;
  if constexpr (Keys::tile.dim <= 128) {
    launch_tensor_core_backward<T, Keys, kDkAndDv, kHasFeatures>(kTensorCoreOp, context, a);
  } else {
    launch_tensor_core_backward<T, Keys, kDv, kHasFeatures>(kTensorCoreOp, context, a);
    launch_tensor_core_backward<T, Keys, kDk, kHasFeatures>(kTensorCoreOp, context, a);
  }
  launch_tensor_core_backward<T, Queries, kDq, kHasFeatures>(kTensorCoreOp, context, a);
}

template <class T, int kIndex>
void run_tensor_core_backward(const Context& context, const AttentionBackwardProblem& p) {
  const Scratch scratch(kTensorCoreOp, context, p.rows() * sizeof(RowStatistics<float>));
  make_row_statistics(context, p, scratch.as<void>());
  const TensorCoreBackward a{p, scratch.as<RowStatistics<float>>()};
  run_gradients<T, kIndex>(context, a);
  if (p.dbias.defined()) run_bias_gradient(context, p, a.statistics);
  make_sink_gradients(context, p, a.statistics);
}

}  // namespace transformer_kernels::cuda
