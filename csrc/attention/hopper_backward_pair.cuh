// SPDX-License-Identifier: MIT
// Backward pass of attention on sm_90a for heads of more than 128 columns: as hopper_backward.cuh,
// but a tile of 128 keys is one of a pair of CTAs, each of which owns 64.
#pragma once

#include "attention/hopper_backward_pair_consumer.cuh"
#include "attention/hopper_backward_pair_producer.cuh"

namespace transformer_kernels::cuda {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    hopper_backward_pair_kernel(const __grid_constant__ HopperBackward p) {
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp % 4, 0);
  const int lane = threadIdx.x % kWarp;
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) PairShared<C>::init_barriers(C::ordered(p));
  cluster_arrive();
  cluster_wait();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (warpgroup == 0) {
    give_registers<C::kProducerRegisters>();
    if (lane != 0) return;
    const PairProducer<C> producer(p, rank);
    if (warp == 0) producer.load_tiles();
    if (warp == 1) producer.load_queries();
    if (C::ordered(p) && warp >= 2) producer.keep_order(warp - 2, rank * C::kConsumers + warp - 2);
  } else {
    take_registers<C::kConsumerRegisters>();
    if (warpgroup == 1) {
      PairValues<C>(p, rank, warp, lane).run();
    } else {
      PairKeys<C>(p, rank, warp, lane).run();
    }
    // Nobody leaves while the other CTA may still write here.
    cluster_arrive();
    cluster_wait();
  }
}

}  // namespace transformer_kernels::cuda
