// SPDX-License-Identifier: MIT
// The kernel of the forward pass.
//
//   warpgroup 0     warps 0 and 1 load q, k and v by TMA, warp 2 stores out, warp 3 loads bias and
//                   mask where there are any
//   warpgroups 1..  64 queries each. For each block: start S = q k^T of this block and O += P v of
//                   the one before it, then turn S into P while the second product runs.
//
// Turns pass round the warpgroups, so that the products of one run while the others exponentiate.
// out leaves through the warpgroup's own rows of the tile's q buffer; where there is a second
// buffer, the next tile's q is loaded already.
#pragma once

#include "attention/sm90/forward/consumer.cuh"
#include "attention/sm90/forward/producer.cuh"

namespace transformer_kernels::cuda {

template <class C>
__global__ void __launch_bounds__(C::kPlan.threads(), 1)
    hopper_forward_kernel(const __grid_constant__ HopperForward p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  static_assert(sizeof(ForwardStorage<C>) <= 227 * 1024);
  auto& storage = *reinterpret_cast<ForwardStorage<C>*>(memory);
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) storage.init_barriers();
  __syncthreads();
  if (group == 0) {
    give_registers<C::kPlan.producer_registers()>();
    if (threadIdx.x == 0) load_q_and_k<C>(p, storage);
    if (threadIdx.x == 32) load_v<C>(p, storage);
    if (threadIdx.x == 64) store_tiles<C>(p, storage);
    if constexpr (C::kLoadsMaps) {
      if (threadIdx.x == 96) load_maps<C>(p, storage);
    }
  } else {
    take_registers<C::kPlan.consumer_registers()>();
    ForwardConsumer<C>(p, storage, group - 1).run();
  }
}

}  // namespace transformer_kernels::cuda
