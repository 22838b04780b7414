// SPDX-License-Identifier: MIT
#include "attention/plain.h"
#include "attention/row_blocks.h"
#include "attention/score.cuh"
#include "core/cuda/launch.cuh"

namespace transformer_kernels::cuda {
namespace {

template <class Problem>
const char* takes_everything(const Problem&, const DeviceLimits&) {
  return nullptr;
}

template <class Problem>
void run_plain(const Context&, const Problem&) {
  throw Error(Error::Kind::kRuntime, "attention: the plain engine is on its way");
}

}  // namespace

const AttentionEngine<AttentionForwardProblem> kPlainForward = {
    "plain", &takes_everything<AttentionForwardProblem>, &run_plain<AttentionForwardProblem>};
const AttentionEngine<AttentionBackwardProblem> kPlainBackward = {
    "plain", &takes_everything<AttentionBackwardProblem>, &run_plain<AttentionBackwardProblem>};

}  // namespace transformer_kernels::cuda
