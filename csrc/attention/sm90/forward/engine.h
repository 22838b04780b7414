// SPDX-License-Identifier: MIT
// Sm90, forward: the forward pass on wgmma and TMA, for float16 and bfloat16 on sm_90a. Host side,
// no CUDA header.
//
// One persistent CTA an SM takes tiles of queries of one head, 64 for each of its two or three
// consumer warpgroups, the longest tiles first. It goes through the blocks of keys that a tile
// sees, the last one first. A thread of a consumer owns parts of two rows of S, P and O in
// registers.
//
//   time ->      S2 = q k2^T; PV2 = its part of O
//   producer     q k2 v2 k1 v1 k0 v0 | the next tile's q k2 v2 ...
//   consumer 0   S2  softmax 2 |S1 PV2| softmax 1 ...... |S0 PV1| softmax 0 ...... |PV0| O leaves
//   consumer 1       S2  softmax 2 .. |S1 PV2| softmax 1 ...... |S0 PV1| softmax 0 ...
//
// PV2 runs beside softmax 1, and the consumers take turns: while one exponentiates, the tensor
// cores work for another.
#pragma once

#include <array>
#include <bit>

#include "attention/cuda.h"

namespace transformer_kernels::cuda {

// Features that a problem may have beside products and a positive scale.
enum ForwardFeature : unsigned {
  kAlibi = 1,
  kSoftcap = 2,
  kBias = 4,
  kMask = 8,
  kDropout = 16,
  kOtherScale = 32,  // not positive, or next to 0
  kMaps = kBias | kMask,
  kEveryFeature = 63,
};

// How a CTA cuts the work: tiles of 64 queries a warpgroup, looped over blocks of keys.
struct HopperForwardPlan {
  const char* name;
  int dim;            // the most of D and Dv
  int groups;         // warpgroups that multiply
  int block_keys;     // keys of a block
  int stages;         // blocks of k, and of v, in shared memory
  int q_buffers;      // tiles of q in shared memory
  int least_keys;     // pays from so many on
  unsigned features;  // that its kernel has code for; where it is one, a problem has it
  int map_slabs;      // of bias and mask in shared memory for each warpgroup
  int polynomials;    // of 8 exponentials behind a softcap, how many are no MUFU instruction

  constexpr int tile_queries() const { return 64 * groups; }
  constexpr BlockSizes block() const { return {tile_queries(), block_keys}; }
  constexpr int threads() const { return 128 * (groups + 1); }
  // Slabs of 64 columns, the 128 bytes of a swizzled row.
  constexpr int slabs() const { return (dim + 63) / 64; }
  // Registers of a thread.
  constexpr int consumer_registers() const { return groups == 2 ? 232 : 160; }
  constexpr int producer_registers() const { return groups == 2 ? 40 : 32; }
  constexpr bool has_one_feature() const { return std::has_single_bit(features); }

  constexpr bool operator==(const HopperForwardPlan&) const = default;
};

// The first plan that fits a problem runs it.
// clang-format off
inline constexpr HopperForwardPlan kHopperForwardPlans[] = {
    //                                dim groups keys stages q  least features maps polynomials
    {"hopper_forward_64",              64, 3, 128, 3, 2,     0, 0,             0, 0},
    {"hopper_forward_96",              96, 3,  96, 2, 2,     0, 0,             0, 0},
    {"hopper_forward_128_long",       128, 3,  80, 2, 2,  2048, 0,             0, 0},
    {"hopper_forward_128",            128, 2, 128, 2, 2,     0, 0,             0, 0},
    {"hopper_forward_192",            192, 2,  64, 2, 2,     0, 0,             0, 0},
    {"hopper_forward_256",            256, 2,  64, 2, 1,     0, 0,             0, 0},
    {"hopper_forward_64_alibi",        64, 3, 128, 3, 2,     0, kAlibi,        0, 0},
    {"hopper_forward_64_softcap",      64, 3, 128, 3, 2,     0, kSoftcap,      0, 3},
    {"hopper_forward_64_bias",         64, 3, 128, 2, 2,     0, kBias,         4, 0},
    {"hopper_forward_64_mask",         64, 3, 128, 3, 2,     0, kMask,         1, 0},
    {"hopper_forward_64_dropout",      64, 3,  96, 3, 2,     0, kDropout,      1, 0},
    {"hopper_forward_64_extras",       64, 3,  96, 3, 2,     0, kEveryFeature, 4, 4},
    {"hopper_forward_128_alibi_long", 128, 3,  80, 2, 2,  2048, kAlibi,        0, 0},
    {"hopper_forward_128_alibi",      128, 2, 128, 2, 2,     0, kAlibi,        0, 0},
    {"hopper_forward_128_softcap",    128, 3,  80, 2, 2,     0, kSoftcap,      0, 2},
    {"hopper_forward_128_bias",       128, 2, 128, 2, 2,     0, kBias,         2, 0},
    {"hopper_forward_128_mask",       128, 2, 128, 2, 2,     0, kMask,         1, 0},
    {"hopper_forward_128_dropout",    128, 2, 128, 2, 2,     0, kDropout,      1, 0},
    {"hopper_forward_128_extras",     128, 2, 128, 2, 2,     0, kEveryFeature, 2, 2},
    {"hopper_forward_256_extras",     256, 2,  64, 2, 1,     0, kEveryFeature, 2, 0},
};
// clang-format on

inline constexpr int kHopperForwardCount = static_cast<int>(std::size(kHopperForwardPlans));

// One row of the table of engines for each plan.
extern const std::array<AttentionEngine<AttentionForwardProblem>, kHopperForwardCount>
    kHopperForwardEngines;

}  // namespace transformer_kernels::cuda
