// SPDX-License-Identifier: MIT
// The kernel between prologue and epilogue: dk, dv, and dq in float32.
//
//   warpgroup 0   one warp takes tiles and loads k and v; one loads q and dout; two, one for the
//                 part of dq of each consumer, keep the order in which tiles add to it, if needed
//   two more      64 keys each, see consumer.cuh
//   the last one  only in some variants: computes dq, see dq.cuh
#pragma once

#include "attention/sm90/backward/consumer.cuh"
#include "attention/sm90/backward/dq.cuh"
#include "attention/sm90/backward/producer.cuh"
#include "attention/sm90/backward/step_ahead.cuh"
#include "attention/sm90/backward/step_behind.cuh"
#include "attention/sm90/backward/step_beside.cuh"

namespace transformer_kernels::cuda {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    hopper_backward_kernel(const __grid_constant__ HopperBackward p) {
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp % 4, 0);
  const int lane = threadIdx.x % kWarp;
  if (threadIdx.x == 0) BackwardShared<C>::init_barriers(C::ordered(p));
  __syncthreads();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (warpgroup == 0) {
    give_registers<C::kProducerRegisters>();
    if (lane != 0) return;
    const BackwardProducer<C> producer(p);
    if (warp == 0) producer.schedule();
    if (warp == 1) producer.load_queries();
    if (!C::ordered(p) || warp < 2) return;
    const int consumer = warp - 2;
    if constexpr (C::kSumsInShared) {
      producer.add_in_order(consumer, consumer % C::kSlices);
    } else {
      producer.keep_order(consumer, consumer % C::kSlices);
    }
    return;
  }
  if constexpr (C::kHasDqMaker) {
    if (warpgroup > C::kConsumers) {
      give_registers<C::kDqRegisters>();
      BackwardDqMaker<C>(p, warp, lane).run();
      return;
    }
  }
  take_registers<C::kConsumerRegisters>();
  // A warp's number that is not said to be the warp's is read again where it is needed. Sequences
  // of any lengths leave no register for it.
  const int own_warp = C::kRagged && !C::kHasFeatures ? threadIdx.x / kWarp % 4 : warp;
  BackwardConsumer<C>(p, warpgroup - 1, own_warp, lane).run();
}

}  // namespace transformer_kernels::cuda
