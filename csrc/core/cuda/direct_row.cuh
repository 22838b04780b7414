// SPDX-License-Identifier: MIT
// Direct row kernels, for small problems: one CTA a row, from global memory to registers and back.
//
// The time of a small problem is latency: of the launch, of instructions that no SM has fetched
// yet, of the first loads, of reductions. So the code is short, all loads are issued first, nothing
// is staged, a row's sums cross its warps behind one barrier, and the launch overlaps the end of
// the kernel before. A warp owns kPacks * 32 neighbouring packs; lane l owns packs l, l + 32, ...
#pragma once

#include "core/cuda/direct_plan.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

// Call first in a kernel that launch_direct launches, before it touches memory that the kernel
// before may still write or read. The next kernel may start from here on, and not earlier: it finds
// the kernels before this one complete, as it would without overlap.
__device__ __forceinline__ void follow_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  wait_for_previous_kernel();
  let_next_kernel_start();
#endif
}

template <class Plan, class Parameters>
void launch_direct(const char* op, const Context& context, std::int64_t ctas, int row_packs,
                   void (*kernel)(Parameters), const Parameters& parameters) {
  const LaunchShape shape{.ctas = ctas,
                          .threads = direct_threads(Plan::plan, row_packs),
                          .after_previous = device_limits(context.device.index).architecture >= 90};
  launch(op, context, shape, kernel, parameters);
}

template <class T, class Plan>
struct DirectRow {
  using P = Pack<T, 16 / sizeof(T)>;
  static constexpr int kSize = P::size;
  static constexpr int kPacks = Plan::plan.packs;
  using Raw = ParameterPack<T, kSize>;

  int packs;  // of the row
  int first;  // of them that this thread owns

  __device__ __forceinline__ explicit DirectRow(int row_packs)
      : packs(row_packs),
        first(threadIdx.x / kWarp * (kPacks * kWarp) + threadIdx.x % kWarp) {}

  __device__ __forceinline__ bool owns(int slot) const { return first + slot * kWarp < packs; }

  // The pack in `slot` of a row, or of parameters, that start at `start`.
  template <class E>
  __device__ __forceinline__ E* at(E* start, int slot) const {
    return start + first * kSize + slot * (kWarp * kSize);
  }

  // Zeros for a pack that the row does not have.
  template <class E>
  __device__ __forceinline__ void load(const E* start,
                                       ParameterPack<E, kSize> (&raw)[kPacks]) const {
#pragma unroll
    for (int slot = 0; slot < kPacks; ++slot) {
      raw[slot] = {};
      if (owns(slot)) raw[slot].load_in_order(at(start, slot));
    }
  }

  __device__ __forceinline__ void store(T* start, int slot, uint4 raw) const {
    if (owns(slot)) P::store(at(start, slot), raw);
  }
};

// The value that each warp brings (the same in all its lanes) to all warps: lane l gets that of
// warp l % kWarps, or `nothing` where there is no such warp. One barrier; each `slots` serves once.
template <int kWarps, class V>
__device__ __forceinline__ V gather_warps(V (&slots)[kWarps], V mine, V nothing) {
  const int warps = blockDim.x / kWarp;
  if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = mine;
  __syncthreads();
  const int from = threadIdx.x % kWarps;
  return from < warps ? slots[from] : nothing;
}

// The maximum over a warp: in one instruction, as the order of the bits, from sm_80 on. There may
// be no NaN.
__device__ __forceinline__ float warp_maximum(float value) {
#if __CUDA_ARCH__ >= 800
  const auto ordered = [](int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); };
  return __int_as_float(ordered(__reduce_max_sync(kAllLanes, ordered(__float_as_int(value)))));
#else
  return reduce_lanes<Max>(value);
#endif
}

}  // namespace transformer_kernels::cuda
