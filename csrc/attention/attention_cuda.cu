// SPDX-License-Identifier: MIT
// No kernel yet: the entry has the place, and whoever comes with CUDA tensors is told.
#include "attention/attention_problem.h"
#include "core/check.h"

namespace transformer_kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(Error::Kind::kValue,
              "attention: device is cuda, expected cpu (there are no CUDA kernels for it)");
}

}  // namespace

void attention_forward(const Context&, const AttentionForwardProblem&) { refuse(); }

void attention_backward(const Context&, const AttentionBackwardProblem&) { refuse(); }

}  // namespace transformer_kernels::cuda
