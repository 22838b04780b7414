// SPDX-License-Identifier: MIT
// Statistics of a row from lse and its own sum.
#pragma once

#include "attention/common/row_gradients.h"
#include "core/cuda/exponent.cuh"

namespace transformer_kernels::cuda {

// Of the row that stands at `row` of lse. T is q's dtype.
template <class T, class A = accumulate_t<T>>
__device__ __forceinline__ RowStatistics<A> statistics_of(const AttentionBackwardProblem& p,
                                                          std::int64_t row, A out_dot_dout) {
  const A inf = static_cast<A>(INFINITY);
  const A lse = static_cast<const A*>(p.lse)[row];
  const A dlse = p.dlse == nullptr ? A{0} : static_cast<const A*>(p.dlse)[row];
  return {lse == -inf ? inf : lse * Exponent<T>::kPerNatural, out_dot_dout - dlse};
}

}  // namespace transformer_kernels::cuda
