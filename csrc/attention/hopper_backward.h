// SPDX-License-Identifier: MIT
// The backward pass on wgmma and TMA, for float16 and bfloat16 on sm_90a. Host side, no CUDA
// header.
#pragma once

#include <array>

#include "attention/attention_cuda.h"

namespace transformer_kernels::cuda {

// What a kernel is made for. The first two are the fastest, for sequences of one length and scores
// that are products times a scale; the second one sums dq up in the order of tiles, which with 64
// columns costs so little that there is no other. The others ask for that order at run time, the
// first one with 128 columns only.
enum class BackwardForm : std::uint8_t {
  kFree,  // of more than 64 columns
  kOrdered,
  kRagged,   // sequences of any lengths
  kScores,   // and features that only add to scores, or hide them; of up to 128 columns
  kWeights,  // and softcap and dropout, with which dS is made of other weights than P
};

struct HopperBackwardKernel {
  const char* name;
  int dim;  // columns in shared memory: the most of D
  BackwardForm form;
};

// clang-format off
inline constexpr HopperBackwardKernel kHopperBackwardKernels[] = {
    {"hopper_backward_64",           64, BackwardForm::kOrdered},
    {"hopper_backward_64_packed",    64, BackwardForm::kRagged},
    {"hopper_backward_64_scores",    64, BackwardForm::kScores},
    {"hopper_backward_64_weights",   64, BackwardForm::kWeights},
    {"hopper_backward_128",         128, BackwardForm::kFree},
    {"hopper_backward_128_packed",  128, BackwardForm::kRagged},
    {"hopper_backward_128_scores",  128, BackwardForm::kScores},
    {"hopper_backward_128_weights", 128, BackwardForm::kWeights},
    {"hopper_backward_192",         192, BackwardForm::kFree},
    {"hopper_backward_192_ordered", 192, BackwardForm::kOrdered},
    {"hopper_backward_192_packed",  192, BackwardForm::kRagged},
    {"hopper_backward_192_weights", 192, BackwardForm::kWeights},
    {"hopper_backward_256",         256, BackwardForm::kFree},
    {"hopper_backward_256_ordered", 256, BackwardForm::kOrdered},
    {"hopper_backward_256_packed",  256, BackwardForm::kRagged},
    {"hopper_backward_256_weights", 256, BackwardForm::kWeights},
};
// clang-format on

inline constexpr int kHopperBackwards = static_cast<int>(std::size(kHopperBackwardKernels));

// One row of the table of engines for each kernel.
extern const std::array<AttentionEngine<AttentionBackwardProblem>, kHopperBackwards>
    kHopperBackward;

}  // namespace transformer_kernels::cuda
