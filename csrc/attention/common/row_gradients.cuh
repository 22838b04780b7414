// SPDX-License-Identifier: MIT
// Statistics of a row from lse and its own sum.
#pragma once

#include "attention/common/far_rows.h"
#include "attention/common/row_gradients.h"
#include "core/cuda/exponent.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

// The statistics of row `row` of lse. T is q's dtype.
template <class T, class A = accumulate_t<T>>
__device__ __forceinline__ RowStatistics<A> statistics_of(const AttentionBackwardProblem& p,
                                                          std::int64_t row, A out_dot_dout) {
  const A inf = static_cast<A>(INFINITY);
  const A lse = static_cast<const A*>(p.lse)[row];
  const A dlse = p.dlse == nullptr ? A{0} : static_cast<const A*>(p.dlse)[row];
  A origin = lse == -inf ? inf : lse * Exponent<T>::kPerNatural;
  if (fabs(origin) == inf && fabs(lse) < inf) origin = lse;  // as far
  return {origin, out_dot_dout - dlse};
}

// Whether one of kRows neighbouring rows is far; the answer is the warp's.
template <int kRows, class A>
__device__ __forceinline__ bool has_far_row(const RowStatistics<A>* rows) {
  bool far = false;
  for (int row = static_cast<int>(threadIdx.x) % kWarp; row < kRows; row += kWarp) {
    far = far || is_far(rows[row].origin);
  }
  return __any_sync(kAllLanes, far);
}

// Exponentials of the scores of a row that may be far: with `z` a score, power(z) is
// exp(z - lse - lse_rest).
template <class T>
struct FarRow {
  using A = accumulate_t<T>;
  using E = Exponent<T>;

  A lse;   // 0 where the row is not far
  A rest;  // in units of Exponent; with lse where the row is not far

  // The far row `row` of lse; `p` has lse and lse_rest.
  template <class Problem>
  __device__ __forceinline__ FarRow(const Problem& p, std::int64_t row, A origin)
      : lse(0),
        rest(origin) {
    if (!is_far(origin)) return;
    lse = static_cast<const A*>(p.lse)[row];
    rest = p.lse_rest == nullptr ? A{0} : static_cast<const A*>(p.lse_rest)[row] * E::kPerNatural;
  }

  __device__ __forceinline__ A power(A z) const {
    return E::power(fma(z - lse, E::kPerNatural, -rest));
  }
};

}  // namespace transformer_kernels::cuda
