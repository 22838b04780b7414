// SPDX-License-Identifier: MIT
// Sm90, backward: the backward pass on wgmma and TMA, for float16 and bfloat16 on sm_90a. Host
// side, no CUDA header.
//
// There are three kernels. The prologue computes lse and delta of every query (a CTA a block of 64
// queries) and clears dq; the epilogue turns the sums of dq, in float32, into its dtype. Between
// them one CTA an SM takes tiles of 128 keys of one head of k and v, and goes through the blocks of
// queries that see them, the last one first, for all query heads of the group. A consumer warpgroup
// owns 64 of the keys: its dk and dv are sums in registers. dq is a sum over tiles in global
// memory.
//
//   time ->        blocks 3, 2, ... of queries; S, P, dP and dS are transposed: rows are keys
//   producers      k v | q3 dO3 | q2 dO2 | q1 dO1 | ...
//   consumer 0     S3  P3 |dP3 dV|  dS3 |S2 dK|  P2 |dP2 dV|  dS2 |S1 dK|  P1 ...
//   consumer 1         S3  P3 |dP3 dV|  dS3 |S2 dK|  P2 |dP2 dV|  dS2 |S1 dK| ...
//   dq warpgroup  bits3 | bits2              |dQ3| bits1               |dQ2| bits0 ...
//
// The bits are those of dropout, if any. Without a warpgroup for dq, the consumers compute dq
// beside dV or dK of the next block: see step_ahead.cuh and step_behind.cuh. Above 128 columns
// registers hold the sums of 64 keys only: see backward_cluster/.
#pragma once

#include <array>

#include "attention/cuda.h"

namespace transformer_kernels::cuda {

// The kinds of problems that kernels are specialised for. The first three are the fastest, for
// sequences of one length and scores that are products times a scale. kOrdered adds up dq in the
// order of tiles; with 64 columns that costs so little that there is no unordered kernel. kDropout
// does so too. Of the other variants, those of up to 128 columns and the last three ask at run time
// whether to keep that order.
enum class BackwardVariant : std::uint8_t {
  kUnordered,  // of more than 64 columns
  kOrdered,
  kDropout,  // and no other feature; of up to 128 columns
  kRagged,   // sequences of any lengths
  kScores,   // and features that only add to scores, or hide them; of up to 128 columns
  kWeights,  // and softcap and dropout, with which dS is made of other weights than P
};

struct HopperBackwardPlan {
  const char* name;
  int dim;  // columns in shared memory: the most of D
  BackwardVariant variant;
};

// clang-format off
inline constexpr HopperBackwardPlan kHopperBackwardPlans[] = {
    {"hopper_backward_64",           64, BackwardVariant::kOrdered},
    {"hopper_backward_64_dropout",   64, BackwardVariant::kDropout},
    {"hopper_backward_64_packed",    64, BackwardVariant::kRagged},
    {"hopper_backward_64_scores",    64, BackwardVariant::kScores},
    {"hopper_backward_64_weights",   64, BackwardVariant::kWeights},
    {"hopper_backward_128",         128, BackwardVariant::kUnordered},
    {"hopper_backward_128_dropout", 128, BackwardVariant::kDropout},
    {"hopper_backward_128_packed",  128, BackwardVariant::kRagged},
    {"hopper_backward_128_scores",  128, BackwardVariant::kScores},
    {"hopper_backward_128_weights", 128, BackwardVariant::kWeights},
    {"hopper_backward_192",         192, BackwardVariant::kUnordered},
    {"hopper_backward_192_ordered", 192, BackwardVariant::kOrdered},
    {"hopper_backward_192_packed",  192, BackwardVariant::kRagged},
    {"hopper_backward_192_weights", 192, BackwardVariant::kWeights},
    {"hopper_backward_256",         256, BackwardVariant::kUnordered},
    {"hopper_backward_256_ordered", 256, BackwardVariant::kOrdered},
    {"hopper_backward_256_packed",  256, BackwardVariant::kRagged},
    {"hopper_backward_256_weights", 256, BackwardVariant::kWeights},
};
// clang-format on

inline constexpr int kHopperBackwardCount = static_cast<int>(std::size(kHopperBackwardPlans));

// One row of the table of engines for each kernel.
extern const std::array<AttentionEngine<AttentionBackwardProblem>, kHopperBackwardCount>
    kHopperBackwardEngines;

}  // namespace transformer_kernels::cuda
