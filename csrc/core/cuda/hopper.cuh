// SPDX-License-Identifier: MIT
// The PTX of Hopper's kernels beside wgmma: tensor maps (TMA), registers that move between
// warpgroups, and stores of a fragment to shared or global memory. As in ptx.cuh, each function is
// one instruction.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/cuda/ptx.cuh"
#include "core/cuda/wgmma.cuh"

namespace transformer_kernels::cuda {

// Where the first element of a box lies in a tensor of rank 5, closest dimension first. What of a
// box lies outside of the tensor is loaded as 0 and not stored.
struct BoxOrigin {
  int at[5];
};

// The first element of a box in a matrix.
struct MatrixOrigin {
  int col;
  int row;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ------------------------------------------------------------------ L2 cache hints

__device__ __forceinline__ std::uint64_t l2_evict_first() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ std::uint64_t l2_evict_last() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// ------------------------------------------------------------------ tensor maps

// Counts the bytes of the whole box on the mbarrier.
__device__ __forceinline__ void tensor_load(std::uint32_t destination, const CUtensorMap& map,
                                            BoxOrigin box, std::uint32_t barrier,
                                            std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3,%4,%5,%6,%7}], [%2], %8;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]), "r"(box.at[3]),
      "r"(box.at[4]), "l"(policy)
      : "memory");
}

// tensor_load to all CTAs of the cluster whose bits are set in `ctas`: each gets the box at this
// place of its own shared memory, counted on its mbarrier at this place.
__device__ __forceinline__ void tensor_load_multicast(std::uint32_t destination,
                                                      const CUtensorMap& map, BoxOrigin box,
                                                      std::uint32_t barrier, std::uint16_t ctas,
                                                      std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3,%4,%5,%6,%7}], [%2], %8, %9;" ::"r"(
          destination),
      "l"(&map), "r"(barrier), "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]), "r"(box.at[3]),
      "r"(box.at[4]), "h"(ctas), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tensor_store(const CUtensorMap& map, BoxOrigin box,
                                             std::uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2,%3,%4,%5,%6}], [%1];" ::"l"(
          &map),
      "r"(source), "r"(box.at[0]), "r"(box.at[1]), "r"(box.at[2]), "r"(box.at[3]), "r"(box.at[4])
      : "memory");
}

__device__ __forceinline__ void tensor_load(std::uint32_t destination, const CUtensorMap& map,
                                            MatrixOrigin box, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3,%4}], [%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(box.col), "r"(box.row)
      : "memory");
}

__device__ __forceinline__ void tensor_load(std::uint32_t destination, const CUtensorMap& map,
                                            MatrixOrigin box, std::uint32_t barrier,
                                            std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3,%4}], [%2], %5;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(box.col), "r"(box.row), "l"(policy)
      : "memory");
}

// Brings a box to L2.
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap& map, MatrixOrigin box) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1,%2}];" ::"l"(&map),
               "r"(box.col), "r"(box.row)
               : "memory");
}

__device__ __forceinline__ void tensor_store(const CUtensorMap& map, MatrixOrigin box,
                                             std::uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2,%3}], [%1];" ::"l"(&map),
      "r"(source), "r"(box.col), "r"(box.row)
      : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// ------------------------------------------------------------------ fragments

// Four 8x8 matrices of 16-bit elements: matrix i goes to the eight rows of 16 bytes whose addresses
// lanes 8 i to 8 i + 7 give. A lane holds two neighbours of row lane / 4 of each.
__device__ __forceinline__ void store_matrices(std::uint32_t row, std::uint32_t m0,
                                               std::uint32_t m1, std::uint32_t m2,
                                               std::uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

__device__ __forceinline__ void global_reduce_add(float* destination, float4 v) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(destination),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

#endif  // sm_90

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ------------------------------------------------------------------ registers

// A warpgroup's registers a thread, given up to or taken from those of the CTA. The kernel needs
// __launch_bounds__(threads, 1), and each role has to be one branch.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif  // sm_90a

}  // namespace transformer_kernels::cuda
