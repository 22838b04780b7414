// SPDX-License-Identifier: MIT
// The forward pass on CUDA: a thread owns a pack of columns of a few tokens, so that it waits for
// their indices once and then for all their rows.
#pragma once

#include <limits>

#include "core/cuda/direct_row.cuh"
#include "embedding/index.cuh"
#include "embedding/plan.h"
#include "pointwise/pack.cuh"
#include "pointwise/plan.h"

namespace transformer_kernels::cuda {

// The packs of one table. A token whose index is no row is marked in the bits of `unknown`.
template <class T, int kSize>
__device__ __forceinline__ void load_table(const EmbeddingForwardProblem& p, int table,
                                           const PointwisePlace& at,
                                           typename Pack<T, kSize>::Raw (&raw)[kEmbeddingRows],
                                           unsigned& unknown) {
  const EmbeddingTable& from = p.table[table];
  std::int64_t index[kEmbeddingRows];
#pragma unroll
  for (int i = 0; i < kEmbeddingRows; ++i) {
    index[i] = at.row(i) < p.tokens
                   ? index_of(from.indices, p.tokens, static_cast<std::uint32_t>(at.row(i)))
                   : -1;
  }
#pragma unroll
  for (int i = 0; i < kEmbeddingRows; ++i) {
    raw[i] = {};
    if (is_row(index[i], from.rows)) {
      const T* row = static_cast<const T*>(from.weight.data) + index[i] * from.weight.stride;
      raw[i] = load_pack<T, kSize>(row + at.col, kSize);
    } else {
      unknown |= 1u << i;
    }
  }
}

template <class T, int kSize>
__global__ void __launch_bounds__(kPointwiseThreads)
    embedding_forward_kernel(const __grid_constant__ EmbeddingForwardProblem p) {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  constexpr int kTables = EmbeddingForwardProblem::kMostTables;
  follow_previous_kernel();
  const PointwisePlace at(kSize, kEmbeddingRows);
  if (at.col >= p.cols) return;

  typename P::Raw raw[kTables][kEmbeddingRows];
  unsigned unknown = 0;
#pragma unroll
  for (int table = 0; table < kTables; ++table) {
    if (table < p.tables) load_table<T, kSize>(p, table, at, raw[table], unknown);
  }
#pragma unroll
  for (int i = 0; i < kEmbeddingRows; ++i) {
    if (at.row(i) >= p.tokens) return;
    const bool known = (unknown >> i & 1) == 0;
    if (p.tables > 1 || !known) {
      A sum[kSize];
      P::unpack(raw[0][i], sum);
#pragma unroll
      for (int table = 1; table < kTables; ++table) {
        if (table >= p.tables) break;
        A term[kSize];
        P::unpack(raw[table][i], term);
#pragma unroll
        for (int k = 0; k < kSize; ++k) sum[k] += term[k];
      }
#pragma unroll
      for (A& v : sum) v = known ? v : std::numeric_limits<A>::quiet_NaN();
      raw[0][i] = P::pack(sum);
    }
    P::store(at.element<T>(p.y, i), raw[0][i]);
  }
}

}  // namespace transformer_kernels::cuda
