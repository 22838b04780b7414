// SPDX-License-Identifier: MIT
// Hopper's GEMM (gemm.cuh): its compile-time shape, its parameters and its shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/cuda/sm90/pipeline.cuh"
#include "core/cuda/sm90/tile_order.cuh"
#include "core/cuda/wgmma.cuh"

namespace transformer_kernels::cuda {

enum class Epilogue {
  kBias,          // out = sum + bias
  kBiasUneven,    // the same, where TMA cannot store: rows of out are of any alignment
  kActivate,      // out = f(z), z = sum + bias
  kActivateKept,  // the same, and kept = z
  kSlope,         // out = sum f'(z), kept = f(z) where it is wanted
  kPartial,       // sums of some of the terms, as they are
  kGated,         // out = f(gate + bias) (up + up_bias): b has columns of gate, then of up
  kGatedKept,     // the same, kept = gate and kept_up = up, without their biases
  kGatedSlope,    // out = sum f'(g) u, out_up = sum f(g), kept = f(g) u where it is wanted:
                  // g = z + bias, u = z_up + up_bias
};

struct GemmParameters {
  CUtensorMap a;
  CUtensorMap b;
  CUtensorMap out;
  CUtensorMap kept;
  CUtensorMap z;
  CUtensorMap b_up;  // of gated epilogues, as all of up
  CUtensorMap kept_up;
  CUtensorMap out_up;
  CUtensorMap z_up;
  const void* up_bias;
  void* uneven;  // of kBiasUneven: out, and from row to row
  std::int64_t uneven_step;
  const void* bias;   // may be null
  bool bias_is_wide;  // float32
  bool keeps;         // of kSlope and kGatedSlope
  int rows;
  int cols;
  int blocks;  // of 64 terms
  TileOrder tiles;
  // kPartial writes a matrix of rows x cols for each part. kSlope writes PartialGradients of its
  // columns, one row for the rows that a warp has of a tile; null where the gradient is not wanted.
  float* partial;
  int parts;           // of the terms; 1 but of kPartial
  int blocks_of_part;  // but for the last, which may have fewer
};

// The work item of a warpgroup: a tile's sums over some of the terms.
struct GemmUnit {
  TilePlace place;
  int part;
  int first_block;
  int blocks;
};

// kOther: a is kept with its rows together, b with its columns.
template <class T_, class Activation_, Epilogue kEpilogue_, Major kMajorA_, Major kMajorB_,
          int kRows_, int kCols_>
struct GemmShape {
  using T = T_;
  using Activation = Activation_;
  static constexpr Epilogue kEpilogue = kEpilogue_;
  static constexpr Major kMajorA = kMajorA_;
  static constexpr Major kMajorB = kMajorB_;

  static constexpr int kRows = kRows_;
  static constexpr int kCols = kCols_;
  static constexpr int kBlock = 64;  // terms of a stage
  static constexpr int kBands = kRows / 64;

  // How many tensors like the result are read: z, or those of gate and up.
  static constexpr int kInputs = kEpilogue == Epilogue::kGatedSlope ? 2
                                 : kEpilogue == Epilogue::kSlope    ? 1
                                                                    : 0;
  static constexpr bool kReadsZ = kInputs > 0;
  static constexpr bool kSumsColumns = kEpilogue == Epilogue::kSlope;
  // One half of a tile's columns of b are of the gate, the other the same columns of up.
  static constexpr bool kGated = kEpilogue == Epilogue::kGated || kEpilogue == Epilogue::kGatedKept;
  static constexpr int kOutCols = kGated ? kCols / 2 : kCols;
  // Stored from registers, where they stand.
  static constexpr bool kInOrder =
      kEpilogue == Epilogue::kPartial || kEpilogue == Epilogue::kBiasUneven;
  static constexpr bool kAddsBias = kEpilogue != Epilogue::kSlope && !kInOrder;
  static constexpr bool kAddsUpBias = kGated || kEpilogue == Epilogue::kGatedSlope;
  // Chunks that leave from one slot.
  static constexpr int kOutputs = kReadsZ                                ? kInputs
                                  : kEpilogue == Epilogue::kGatedKept    ? 3
                                  : kEpilogue == Epilogue::kActivateKept ? 2
                                                                         : 1;

  static constexpr int kChunkCols = 32;
  static constexpr int kChunkRowBytes = kChunkCols * 2;
  static constexpr int kChunkBytes = 64 * kChunkRowBytes;
  static constexpr int kChunks = kBands * kOutCols / kChunkCols;

  // Slots of a warpgroup; those of an epilogue that reads z are of both, and hold all chunks of a
  // tile's z, or half of its gate and up.
  static constexpr int kSlots = kReadsZ                         ? kChunks / kInputs
                                : kOutputs == 3                 ? 2
                                : kOutputs == 2 || kCols == 128 ? 4
                                                                : 3;
  static constexpr int kSlotBytes = kChunkBytes * kOutputs;
  static constexpr int kRounds = kChunks / kSlots;  // that a tile makes over its slots
  static constexpr int kKeptSlots = 2;              // of a warpgroup, where z is read
  static constexpr int kStages = kCols == 128 ? 6 : kReadsZ || kOutputs > 1 ? 4 : 5;

  static constexpr int kBytesOfA = kRows * kBlock * 2;
  // Where columns are together they come in boxes of 64, of which the last may be half used.
  static constexpr int kBoxesOfB = (kCols + 63) / 64;
  static constexpr int kBytesOfB = (kMajorB == Major::kK ? kCols : 64 * kBoxesOfB) * kBlock * 2;
  static constexpr int kStageBytes = kBytesOfA + kBytesOfB;
  static_assert(kRows % 64 == 0 && kCols % kChunkCols == 0 && kChunks % kSlots == 0);
  static_assert(!kReadsZ || kChunks % kKeptSlots == 0);
  static_assert(!kGated || (kMajorB == Major::kK && kOutCols % kChunkCols == 0));
};

template <class S>
struct alignas(1024) GemmStorage {
  static constexpr int kGroups = S::kReadsZ ? 1 : 2;

  unsigned char stages[S::kStages][S::kStageBytes];
  unsigned char slots[kGroups][S::kSlots][S::kSlotBytes];
  unsigned char kept[S::kReadsZ ? 2 * S::kKeptSlots : 1][S::kReadsZ ? S::kChunkBytes : 8];
  PipelineBarriers<S::kStages> barriers;
  // One for each warpgroup: a parity alone could not tell the tile of one from that of the other.
  std::uint64_t z_full[2][S::kReadsZ ? S::kSlots : 1];
  std::uint64_t z_empty[S::kReadsZ ? S::kSlots : 1];
};

}  // namespace transformer_kernels::cuda
