// SPDX-License-Identifier: MIT
// The schedule with 128 columns where another warpgroup computes dQ: there are registers for S^T in
// a separate group of products, which ends first.
//
//   time ->        block 3, the next is 2
//   tensor cores   dP3 and dV3 ...... | S2, dK3 .................... |
//   CUDA cores              | dS3     | dS3 leaves | P2              |
//                           '- dP3 is there        '- S2 is there
#pragma once

#include "attention/sm90/backward/consumer.cuh"

namespace transformer_kernels::cuda {

template <class C>
template <bool kLast>
__device__ __forceinline__ void BackwardConsumer<C>::step_beside(int block) {
  begin_dp();
  pin(p_packed);
  pin(dv);
  wgmma_fence();
  multiply_dp();
  multiply_gradient(dv, p_packed, dout_block(count));
  wgmma_wait<1>();
  pin(dp);
  differentiate();
  end_dv();
  if constexpr (!kLast) multiply_scores(count + 1);
  multiply_gradient(dk, ds_packed, q_block(count));
  store_ds();
  if constexpr (!kLast) {
    wgmma_wait<1>();
    pin(s);
    exponentiate(block - 1, count + 1);
  }
  end_dk();
}

}  // namespace transformer_kernels::cuda
