// SPDX-License-Identifier: MIT
// Copies of rows of k and v in the operand layouts of the products, in accumulation precision. For
// sources that are compiled once per instruction set.
#pragma once

#include "attention/cpu/scores.h"
#include "core/cpu/multiply.h"

namespace transformer_kernels::cpu::TFK_ISA {

// `block` holds a vector's lanes of keys, in rows spread_dim() numbers apart.
template <class F>
TFK_FLATTEN void pack_columns(const F* block, std::int64_t dim, F* columns) {
  constexpr int kLanes = Vec<F>::kLanes;
  const std::int64_t width = spread_dim(dim);
  for (std::int64_t first = 0; first < dim; first += kLanes) {
    Vec<F> square[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) square[i] = load(block + i * width + first, All{});
    transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (first + i < dim) store(columns + (first + i) * kTileCols<F>, square[i], All{});
    }
  }
}

template <class F>
void pack(const void* source, DType dtype, std::int64_t row_stride, std::int64_t keys,
          std::int64_t dim, PackedRows target) {
  constexpr int kLanes = Vec<F>::kLanes;
  constexpr int kPanel = kTileCols<F>;
  const std::int64_t width = spread_dim(dim);
  const HeadRows rows{const_cast<void*>(source), 0, row_stride, 0};
  F* const columns = static_cast<F*>(target.columns);
  F block[kLanes * spread_dim(kMostDim)];
  for (std::int64_t key = 0; key < rounded_up(keys, kKeyStep); key += kLanes) {
    const std::int64_t count = std::clamp<std::int64_t>(keys - key, 0, kLanes);
    F* const packed = target.rows == nullptr ? block : static_cast<F*>(target.rows) + key * width;
    widen_rows(rows, dtype, 0, key, 0, count, dim, packed, width, keys);
    fill_row(packed + count * width, F{0}, (kLanes - count) * width);
    if (columns == nullptr) continue;
    pack_columns(packed, dim, columns + key / kPanel * kPanel * dim + key % kPanel);
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
