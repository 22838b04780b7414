// SPDX-License-Identifier: MIT
// Attention in tiles: some queries against some keys, with a running maximum and sum of each query,
// so that scores never leave the caches. Compiled once per instruction set; see
// core/cpu/isa.h.
#include "attention/cpu/backward.h"
#include "attention/cpu/forward.h"
#if TFK_ISA_LEVEL >= 3
#include "attention/cpu/bfloat16/backward.h"
#include "attention/cpu/bfloat16/forward.h"
#endif

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class F>
constexpr AttentionKernels kernels_of() {
  return {.forward_block = {kForwardQueries, kForwardKeys},
          .backward_block = {kQueryBlock, kKeyBlock},
          .copy_bytes = sizeof(F),
          .column_step = 1,
          .forward_scratch = forward_scratch<F>,
          .backward_scratch = backward_scratch<F>,
          .pack = pack<F>,
          .forward = forward_item<F>,
          .backward = backward_item<F>,
          .delta = delta_of_rows<F>,
          .add_splits = add_splits<F>};
}

#if TFK_ISA_LEVEL >= 3
constexpr AttentionKernels kernels_of_pairs() {
  return {.forward_block = {kPairQueries, kPairKeys},
          .backward_block = {kPairBackwardQueries, kKeyBlock},
          .copy_bytes = sizeof(BFloat16),
          .column_step = paired_dim(1),
          .forward_scratch = pair_forward_scratch,
          .backward_scratch = pair_backward_scratch,
          .pack = pack_pairs,
          .forward = pair_forward_item,
          .backward = pair_backward_item,
          .delta = delta_of_rows<float>,
          .add_splits = add_splits<float>};
}
#else
constexpr AttentionKernels kernels_of_pairs() { return kernels_of<float>(); }
#endif

}  // namespace

const AttentionKernelTable attention_kernels = {kernels_of<float>(), kernels_of<double>(),
                                                kernels_of_pairs()};

}  // namespace transformer_kernels::cpu::TFK_ISA
