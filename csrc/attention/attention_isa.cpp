// SPDX-License-Identifier: MIT
// Attention in tiles: kQueryBlock queries against kKeyBlock keys, with a running maximum and sum of
// each query, so that scores never leave the caches. Compiled once per instruction set; see
// core/cpu/isa.h.
#include "attention/attention_backward.h"
#include "attention/attention_forward.h"
#if TFK_ISA_LEVEL >= 4
#include "attention/pair_backward.h"
#include "attention/pair_forward.h"
#endif

namespace transformer_kernels::cpu::TFK_ISA {
namespace {

// `block` holds a vector's lanes of keys, in rows of padded_dim().
template <class F>
TFK_FLATTEN void pack_columns(const F* block, std::int64_t dim, F* columns) {
  constexpr int kLanes = Vec<F>::kLanes;
  const std::int64_t width = padded_dim(dim);
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
  const std::int64_t width = padded_dim(dim);
  const HeadRows rows{const_cast<void*>(source), 0, row_stride, 0};
  F* const columns = static_cast<F*>(target.columns);
  F block[kLanes * padded_dim(kMostDim)];
  for (std::int64_t key = 0; key < kKeyStep; key += kLanes) {
    const std::int64_t count = std::clamp<std::int64_t>(keys - key, 0, kLanes);
    F* const packed = target.rows == nullptr ? block : static_cast<F*>(target.rows) + key * width;
    widen_rows(rows, dtype, 0, key, 0, count, dim, packed, width);
    fill_row(packed + count * width, F{0}, (kLanes - count) * width);
    if (columns == nullptr) continue;
    pack_columns(packed, dim, columns + key / kPanel * kPanel * dim + key % kPanel);
  }
}

template <class F>
constexpr AttentionKernels kernels_of() {
  return {kQueryBlock,        sizeof(F),           1,
          forward_scratch<F>, backward_scratch<F>, pack<F>,
          forward_item<F>,    backward_item<F>,    delta_of_rows<F>,
          add_shares<F>};
}

#if TFK_ISA_LEVEL >= 4
constexpr AttentionKernels kernels_of_bfloat16() {
  return {kPairQueries,          sizeof(BFloat16), paired_dim(1),     pair_forward_scratch,
          pair_backward_scratch, pack_pairs,       pair_forward_item, pair_backward_item,
          delta_of_rows<float>,  add_shares<float>};
}
#else
constexpr AttentionKernels kernels_of_bfloat16() { return kernels_of<float>(); }
#endif

}  // namespace

const AttentionKernelTable attention_kernels = {kernels_of<float>(), kernels_of<double>(),
                                                kernels_of_bfloat16()};

}  // namespace transformer_kernels::cpu::TFK_ISA
