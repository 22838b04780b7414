// SPDX-License-Identifier: MIT
// Sm90, backward of clusters: the kernel of the backward pass where a head has more than 128
// columns. Geometry, plans, prologue and epilogue are those of backward/.
//
// A cluster of two CTAs takes a tile of 128 keys, 64 for each CTA, and goes through the blocks of
// queries that see them, the last one first. Each block of q and dO is loaded once for both CTAs.
// In a CTA the two consumer warpgroups work on the same 64 keys: one owns dv, the other dk. Each of
// the four consumers computes its own columns of dQ, over all 128 keys.
//
//   time ->          blocks 3, 2, ... of queries; S, P, dP and dS are transposed: rows are keys
//   producers        k v | dO3 q3 | dO2 q2 | ...           each CTA loads every second slab
//   consumer of v    S3 | P3 | dV3 S2 .. | P2 | dV2 dQ3 S1 ... | P1 | ...
//                         +--v              +--v                 +--v
//   consumer of k    dP3 ... | dS3 | dK3 dP2 ..| dS2 | dQ3 dK2 dP1 .| dS1 | ...
//                               +--> both CTAs    +--> both CTAs       +--> both CTAs
#pragma once

#include "attention/sm90/backward_cluster/consumer.cuh"
#include "attention/sm90/backward_cluster/producer.cuh"

namespace transformer_kernels::cuda {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    hopper_backward_cluster_kernel(const __grid_constant__ HopperBackward p) {
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp % 4, 0);
  const int lane = threadIdx.x % kWarp;
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) ClusterShared<C>::init_barriers(C::ordered(p));
  cluster_arrive();
  cluster_wait();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (warpgroup == 0) {
    give_registers<C::kProducerRegisters>();
    if (lane == 0) {
      const ClusterProducer<C> producer(p, rank);
      if (warp == 0) producer.load_tiles();
      if (warp == 1) producer.load_queries();
      if (C::ordered(p) && warp >= 2) {
        producer.keep_order(warp - 2, rank * C::kConsumers + warp - 2);
      }
    }
    __syncwarp();
  } else {
    take_registers<C::kConsumerRegisters>();
    if (warpgroup == 1) {
      ValueConsumer<C>(p, rank, warp, lane).run();
    } else {
      KeyConsumer<C>(p, rank, warp, lane).run();
    }
  }
  // A CTA must not end while the other may still write to its shared memory. Its producers wait
  // too: they release items at the barriers of rank 0, and a thread that just ended would not wait
  // for that to arrive.
  cluster_arrive();
  cluster_wait();
}

}  // namespace transformer_kernels::cuda
