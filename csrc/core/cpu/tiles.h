// SPDX-License-Identifier: MIT
// AMX: eight tile registers of 16 rows of 64 bytes, and the product of bfloat16 tiles.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>

#include "core/cpu/bfloat16_pair.h"

namespace transformer_kernels::cpu::TFK_ISA {

// The calling thread's tile registers are in use, all of them at full size, while this lives.
class TileScope {
 public:
  TileScope() { _tile_loadconfig(&kFull); }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  // The operand of LDTILECFG.
  struct Configuration {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Configuration) == 64);

  // Not on the stack: GCC 12 takes the intrinsic to read one pointer, and drops what was stored to
  // the rest.
  static const Configuration kFull;
};

inline constexpr TileScope::Configuration TileScope::kFull;

inline constexpr int kTileSide = 16;  // rows of a tile, and its pairs or floats in a row

// The compiler does not know what memory the instructions touch.
TFK_INLINE void tile_fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace transformer_kernels::cpu::TFK_ISA
