// SPDX-License-Identifier: MIT
#include "attention/sm80/float32.h"

#include <utility>

#include "attention/sm80/launch.cuh"

namespace transformer_kernels::cuda {
namespace {

template <int kIndex>
constexpr RunAttention<AttentionForwardProblem> forward() {
  if constexpr (kTensorCoreForwardPlans[kIndex].element_bytes != sizeof(float))
    return nullptr;
  else
    return &run_tensor_core_forward<float, kIndex>;
}

template <int kIndex>
constexpr RunAttention<AttentionBackwardProblem> backward() {
  if constexpr (kTensorCoreBackwardPlans[kIndex].element_bytes != sizeof(float))
    return nullptr;
  else
    return &run_tensor_core_backward<float, kIndex>;
}

template <int... kIndex>
constexpr std::array<RunAttention<AttentionForwardProblem>, kTensorCoreForwardCount> all_forward(
    std::integer_sequence<int, kIndex...>) {
  return {forward<kIndex>()...};
}

template <int... kIndex>
constexpr std::array<RunAttention<AttentionBackwardProblem>, kTensorCoreBackwardCount> all_backward(
    std::integer_sequence<int, kIndex...>) {
  return {backward<kIndex>()...};
}

}  // namespace

const std::array<RunAttention<AttentionForwardProblem>, kTensorCoreForwardCount>
    kTensorCoreFloat32Forward =
        all_forward(std::make_integer_sequence<int, kTensorCoreForwardCount>());
const std::array<RunAttention<AttentionBackwardProblem>, kTensorCoreBackwardCount>
    kTensorCoreFloat32Backward =
        all_backward(std::make_integer_sequence<int, kTensorCoreBackwardCount>());

}  // namespace transformer_kernels::cuda
