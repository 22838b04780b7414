// SPDX-License-Identifier: MIT
// The schedule with 128 columns where consumers compute dQ themselves: there are no registers for
// S^T of the next block beside dQ, so it comes after it, with dK.
//
//   time ->        block 3, the next is 2
//   tensor cores   dP3, dQ4 and dV3 .......... |            | dK3 and S2 ............... |
//   CUDA cores                        | dS3    | dQ4 leaves | dS3 leaves                 | P2
//                                     '- dP3 is there
#pragma once

#include "attention/sm90/backward/consumer.cuh"

namespace transformer_kernels::cuda {

// Products that still run while dS is made: that of dV reads P^T, which the plain dS does too.
// Where it is other weights that are read, the compiler would load them over P^T. Where nothing
// runs beside, dQ may leave first, and its registers serve dS.
template <class C>
inline constexpr int kBesideDs = C::kWeights ? 0 : 1;

template <class C>
template <bool kWithDq, bool kLast>
__device__ __forceinline__ void BackwardConsumer<C>::step_behind(int block) {
  pin(p_packed);
  pin(dv);
  wgmma_fence();
  multiply_dp();
  if constexpr (kWithDq) {
    multiply_dq_and_gradient(count - 1, dv, p_packed, dout_block(count));
  } else {
    multiply_gradient(dv, p_packed, dout_block(count));
  }
  if constexpr (!kLast) draw(block - 1);
  wgmma_wait<kBesideDs<C>>();
  pin(dp);
  if constexpr (C::kWeights) pin(p_packed);
  if constexpr (kWithDq && C::kWeights) add_dq(block + 1, count - 1);
  differentiate();
  wgmma_wait<0>();
  pin(dv);
  release<C::kDoutStages>(C::kDoutEmpty, count);
  if constexpr (kWithDq && !C::kWeights) add_dq(block + 1, count - 1);
  pin(ds_packed);
  pin(dk);
  if constexpr (kWithDq && C::kSumsFirst) __syncwarp();
  wgmma_fence();
  if constexpr (kLast) {
    multiply_gradient(dk, ds_packed, q_block(count));
  } else {
    multiply_scores_and_gradient(dk, ds_packed, q_block(count));
  }
  store_ds();
  if constexpr (!kLast) look_ahead(block - 1, count + 1);
  wgmma_wait<0>();
  pin(dk);
  release<C::kQStages>(C::kQEmpty, count);
  if constexpr (!kLast) {
    pin(s);
    exponentiate(block - 1, count + 1);
  }
}

}  // namespace transformer_kernels::cuda
