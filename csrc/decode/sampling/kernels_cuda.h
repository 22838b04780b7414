// SPDX-License-Identifier: MIT
// Host declarations that the CUDA sources of both ops share.
#pragma once

#include "decode/sampling/group_plan.h"
#include "decode/sampling/problem.h"

namespace transformer_kernels::cuda {

struct SampleCall {
  SampleProblem p;
  sampling::GroupPlan plan;
  float* numbers;            // null: parts of rows are in shared memory
  std::uint64_t* likeliest;  // `top` entries of each CTA, the largest first
};

// A row of probabilities as weights: those of logits are relative to the largest one.
struct RowShare {
  float top;
  std::int64_t sum;
};

struct AcceptCall {
  AcceptProblem p;
  sampling::GroupPlan plan;
  float* numbers;    // as of a choice
  RowShare* shares;  // (batch, drafted + 1) of targets, then (batch, drafted) of drafts
};

template <class T>
void run_sample(const Context& context, const SampleCall& call);
template <class T>
void run_accept(const Context& context, const AcceptCall& call);

}  // namespace transformer_kernels::cuda
