// SPDX-License-Identifier: MIT
#include "attention/sm80/engine.h"

#include <algorithm>
#include <utility>

#include "attention/sm80/float32.h"
#include "attention/sm80/launch.cuh"
#include "core/row_blocks.h"

namespace transformer_kernels::cuda {
namespace {

// Scores that are more than products times a scale, which has to be positive for the largest
// product to be the largest score.
bool has_features(const AttentionProblem& p) {
  return !has_plain_scores(p) || p.drop_below != 0 || p.scale <= 0;
}

template <class Plan>
const char* refusal_of_both(const Plan& plan, const AttentionProblem& p,
                            const DeviceLimits& device) {
  if (device.architecture < 80) return "it needs sm_80 or later";
  if (p.dtype == DType::kFloat64) return "it does not multiply float64";
  if (static_cast<int>(size_of(p.dtype)) != plan.element_bytes) return "it is for another dtype";
  if (std::max(p.dim, p.value_dim) > plan.most_dim()) return "a head dim is larger";
  if (!plan.has_features && has_features(p)) return "it knows no features of scores";
  if (device.shared_bytes_per_cta < kTensorCoreStaticBytes + plan.shared_bytes()) {
    return "the device has too little shared memory";
  }
  if (p.dim * size_of(p.dtype) % 16 != 0 || p.value_dim * size_of(p.dtype) % 16 != 0) {
    return "a head dim is no multiple of 16 bytes";
  }
  for (const HeadRows* rows : {&p.q, &p.k, &p.v}) {
    if (!rows->in_pieces(p.dtype)) return "rows of q, k or v are not aligned to 16 bytes";
  }
  if (std::max(p.queries, p.keys) >= kMostTensorCoreLength) return "there are too many rows";
  return nullptr;
}

const char* refusal(const TensorCoreForwardPlan& plan, const AttentionForwardProblem& p,
                    const DeviceLimits& device) {
  if (const char* reason = refusal_of_both(plan, p, device)) return reason;
  if (!p.out.in_pieces(p.dtype)) return "rows of out are not aligned to 16 bytes";
  const RowBlocks blocks{p.q_offsets, p.batch, p.queries, plan.tile.rows()};
  const bool many = p.heads * blocks.count() >= device.processors;
  return plan.wants_many && !many ? "it leaves multiprocessors idle" : nullptr;
}

const char* refusal(const TensorCoreBackwardPlan& plan, const AttentionBackwardProblem& p,
                    const DeviceLimits& device) {
  if (const char* reason = refusal_of_both(plan, p, device)) return reason;
  for (const HeadRows* rows : {&p.out, &p.dout, &p.dq, &p.dk, &p.dv}) {
    if (!rows->in_pieces(p.dtype)) {
      return "rows of out or of a gradient are not aligned to 16 bytes";
    }
  }
  return nullptr;
}

template <int kIndex>
const char* refuses_forward(const AttentionForwardProblem& p, const DeviceLimits& device) {
  return refusal(kTensorCoreForwardPlans[kIndex], p, device);
}

template <int kIndex>
const char* refuses_backward(const AttentionBackwardProblem& p, const DeviceLimits& device) {
  return refusal(kTensorCoreBackwardPlans[kIndex], p, device);
}

template <int kIndex>
void run_forward(const Context& context, const AttentionForwardProblem& p) {
  if constexpr (kTensorCoreForwardPlans[kIndex].element_bytes == sizeof(float)) {
    kTensorCoreFloat32Forward[kIndex](context, p);
  } else {
    p.dtype == DType::kFloat16 ? run_tensor_core_forward<Half, kIndex>(context, p)
                               : run_tensor_core_forward<BFloat16, kIndex>(context, p);
  }
}

template <int kIndex>
void run_backward(const Context& context, const AttentionBackwardProblem& p) {
  if constexpr (kTensorCoreBackwardPlans[kIndex].element_bytes == sizeof(float)) {
    kTensorCoreFloat32Backward[kIndex](context, p);
  } else {
    p.dtype == DType::kFloat16 ? run_tensor_core_backward<Half, kIndex>(context, p)
                               : run_tensor_core_backward<BFloat16, kIndex>(context, p);
  }
}

template <int... kIndex>
constexpr std::array<AttentionEngine<AttentionForwardProblem>, kTensorCoreForwardCount>
forward_engines(std::integer_sequence<int, kIndex...>) {
  return {{{kTensorCoreForwardPlans[kIndex].name, kTensorCoreForwardPlans[kIndex].block(),
            refuses_forward<kIndex>, run_forward<kIndex>}...}};
}

template <int... kIndex>
constexpr std::array<AttentionEngine<AttentionBackwardProblem>, kTensorCoreBackwardCount>
backward_engines(std::integer_sequence<int, kIndex...>) {
  return {{{kTensorCoreBackwardPlans[kIndex].name, kTensorCoreBackwardPlans[kIndex].block(),
            refuses_backward<kIndex>, run_backward<kIndex>}...}};
}

}  // namespace

const std::array<AttentionEngine<AttentionForwardProblem>, kTensorCoreForwardCount>
    kTensorCoreForwardEngines =
        forward_engines(std::make_integer_sequence<int, kTensorCoreForwardCount>());
const std::array<AttentionEngine<AttentionBackwardProblem>, kTensorCoreBackwardCount>
    kTensorCoreBackwardEngines =
        backward_engines(std::make_integer_sequence<int, kTensorCoreBackwardCount>());

}  // namespace transformer_kernels::cuda
