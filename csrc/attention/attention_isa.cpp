// SPDX-License-Identifier: MIT
// Attention in tiles: some queries against some keys, with a running maximum and sum of each query,
// so that scores never leave the caches. Compiled once per instruction set; see
// core/cpu/isa.h.
#include "attention/attention_backward.h"
#include "attention/attention_forward.h"
#if TFK_ISA_LEVEL >= 4
#include "attention/pair_backward.h"
#include "attention/pair_forward.h"
#endif

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class F>
constexpr AttentionKernels kernels_of() {
  return {kForwardQueries,    sizeof(F),           1,
          forward_scratch<F>, backward_scratch<F>, pack<F>,
          forward_item<F>,    backward_item<F>,    delta_of_rows<F>,
          add_shares<F>};
}

#if TFK_ISA_LEVEL >= 4
constexpr AttentionKernels kernels_of_bfloat16() {
  return {kPairQueries,          sizeof(BFloat16), paired_dim(1),     pair_forward_scratch,
          pair_backward_scratch, pack_pairs,       pair_forward_item, pair_backward_item,
          delta_of_rows<float>,  add_shares<float>};
}
#else
constexpr AttentionKernels kernels_of_bfloat16() { return kernels_of<float>(); }
#endif

}  // namespace

const AttentionKernelTable attention_kernels = {kernels_of<float>(), kernels_of<double>(),
                                                kernels_of_bfloat16()};

}  // namespace transformer_kernels::cpu::TFK_ISA
