// SPDX-License-Identifier: MIT
// The schedule with 64 columns: S^T of the next block is computed beside dV, so that its
// exponentials run during dK and dQ. Where no other warpgroup computes dQ, each consumer does so
// for every second block, one block later.
//
//   time ->        block 3, the next is 2
//   tensor cores   dP3, S2 and dV3 ............ | dK3 and dQ4 ............... |
//   CUDA cores                | dS3 | dS3 leaves | P2                          | dQ4 leaves
//                             '- dP3 is there, S2 and dV3 still run
#pragma once

#include "attention/sm90/backward/consumer.cuh"

namespace transformer_kernels::cuda {

template <class C>
template <bool kWithDq, bool kLast>
__device__ __forceinline__ void BackwardConsumer<C>::step_ahead(int block) {
  pin(p_packed);
  pin(dv);
  wgmma_fence();
  multiply_dp();
  if constexpr (kLast) {
    multiply_gradient(dv, p_packed, dout_block(count));
  } else {
    multiply_scores_and_gradient(dv, p_packed, dout_block(count));
    draw(block - 1);
  }
  wgmma_wait<1>();
  pin(dp);
  differentiate();
  store_ds();
  end_dv();
  if constexpr (kWithDq) {
    multiply_dq_and_gradient(count - 1, dk, ds_packed, q_block(count));
  } else {
    multiply_gradient(dk, ds_packed, q_block(count));
  }
  if constexpr (!kLast) {
    look_ahead(block - 1, count + 1);
    pin(s);
    exponentiate(block - 1, count + 1);
  }
  end_dk();
  if constexpr (kWithDq) add_dq(block + 1, count - 1);
}

}  // namespace transformer_kernels::cuda
