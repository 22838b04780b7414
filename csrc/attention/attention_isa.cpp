// SPDX-License-Identifier: MIT
// Attention in tiles: kQueryBlock queries against kKeyBlock keys, with a running maximum and sum of
// each query, so that scores never leave the caches. Compiled once per instruction set; see
// core/cpu/isa.h.
#include "attention/attention_backward.h"
#include "attention/attention_forward.h"

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

template <class F>
void pack(const void* source, DType dtype, std::int64_t row_stride, std::int64_t keys,
          std::int64_t dim, PackedRows target) {
  constexpr int kPanel = kTileCols<F>;
  const std::int64_t width = padded_dim(dim);
  const std::int64_t row_bytes = row_stride * size_of(dtype);
  const char* const first = static_cast<const char*>(source);
  F* const columns = static_cast<F*>(target.columns);
  F row[padded_dim(kMostDim)] = {};
  for (std::int64_t key = 0; key < kKeyStep; ++key) {
    if (key < keys) {
      const std::int64_t later = std::min(key + kRowsAhead, keys - 1);
      prefetch_row(first + later * row_bytes, dim * size_of(dtype));
      widen_row(dtype, first + key * row_bytes, dim, row);
    } else {
      fill_row(row, F{0}, dim);
    }
    if (columns != nullptr) {
      F* const column = columns + key / kPanel * kPanel * dim + key % kPanel;
      for (std::int64_t i = 0; i < dim; ++i) column[i * kPanel] = row[i];
    }
    if (target.rows != nullptr) {
      narrow_elements<F, F>(row, width, static_cast<F*>(target.rows) + key * width);
    }
  }
}

template <class F>
constexpr AttentionKernels kernels_of() {
  return {pack<F>, forward_item<F>, backward_item<F>, delta_of_rows<F>, add_shares<F>};
}

}  // namespace

const AttentionKernelTable attention_kernels = {{kernels_of<float>(), kernels_of<double>()}};

}  // namespace transformer_kernels::cpu::TFK_ISA
