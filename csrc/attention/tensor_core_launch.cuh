// SPDX-License-Identifier: MIT
// Launches of the tensor-core engine for elements of type T; each type is compiled on its own.
#pragma once

#include "attention/bias_gradient.h"
#include "attention/tensor_core_backward.cuh"
#include "attention/tensor_core_forward.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"

namespace transformer_kernels::cuda {

inline constexpr const char* kTensorCoreOp = "attention";

// Scores that are more than products times a scale, which has to be positive for the largest
// product to be the largest score.
inline bool has_extras(const AttentionProblem& p) {
  return p.softcap != 0 || p.slopes.data != nullptr || p.bias.defined() || p.mask.defined() ||
         p.drop_below != 0 || p.scale <= 0;
}

// Calls body.operator()<index, extras>(), the index of the tiles that the head dims fit.
template <class T, class Body>
void dispatch_tensor_core(const AttentionProblem& p, Body&& body) {
  constexpr auto& kTiles = TensorCoreTiles<sizeof(T)>::forward;
  const std::int64_t dim = std::max(p.dim, p.value_dim);
  std::size_t index = 0;
  while (kTiles[index].dim < dim) ++index;
  dispatch_index<kTiles.size()>(index, [&]<std::size_t kIndex>() {
    dispatch_bool(has_extras(p),
                  [&]<bool kExtras>() { body.template operator()<kIndex, kExtras>(); });
  });
}

template <class T>
void run_tensor_core_forward(const Context& context, const AttentionForwardProblem& p) {
  dispatch_tensor_core<T>(p, [&]<std::size_t kIndex, bool kExtras>() {
    launch_tensor_core_forward<T, ForwardPlan<T, kExtras, kIndex>, kExtras>(kTensorCoreOp, context,
                                                                            p);
  });
}

template <class T, std::size_t kIndex, bool kExtras>
void run_gradients(const Context& context, const TensorCoreBackward& a) {
  using enum BackwardPart;
  using Keys = KeyPlan<T, kExtras, kIndex>;
  using Queries = QueryPlan<T, kExtras, kIndex>;
  if constexpr (Keys::tile.dim <= 128) {
    launch_tensor_core_backward<T, Keys, kDkAndDv, kExtras>(kTensorCoreOp, context, a);
  } else {
    launch_tensor_core_backward<T, Keys, kDv, kExtras>(kTensorCoreOp, context, a);
    launch_tensor_core_backward<T, Keys, kDk, kExtras>(kTensorCoreOp, context, a);
  }
  launch_tensor_core_backward<T, Queries, kDq, kExtras>(kTensorCoreOp, context, a);
}

template <class T>
void run_tensor_core_backward(const Context& context, const AttentionBackwardProblem& p) {
  const std::size_t rows = static_cast<std::size_t>(p.rows());
  const Scratch scratch(kTensorCoreOp, context,
                        std::max<std::size_t>(rows, 1) * sizeof(RowStatistics));
  const TensorCoreBackward a{p, scratch.as<RowStatistics>()};
  if (rows > 0) launch_row_statistics<T>(kTensorCoreOp, context, a);
  dispatch_tensor_core<T>(p, [&]<std::size_t kIndex, bool kExtras>() {
    run_gradients<T, kIndex, kExtras>(context, a);
  });
  if (p.dbias.defined()) run_bias_gradient(context, p, a.statistics);
  if (p.dsinks != nullptr && p.heads > 0) launch_dsinks<T>(kTensorCoreOp, context, a);
}

}  // namespace transformer_kernels::cuda
