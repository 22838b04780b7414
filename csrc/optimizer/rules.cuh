// SPDX-License-Identifier: MIT
// The rules of optimizers for one element on CUDA, in the CPU's order of operations.
#pragma once

#include "core/cuda/reduce.cuh"
#include "optimizer/kernels_cuda.h"

namespace transformer_kernels::cuda {

// The numbers of an element; a rule changes all but the gradient. `top` is the largest second
// moment so far.
template <class A>
struct Element {
  A g;
  A p;
  A m;
  A v;
  A top;
};

template <bool kHasTop>
struct AdamWRule {
  static constexpr bool has_second = true;
  static constexpr bool has_top = kHasTop;

  template <class A>
  static __device__ __forceinline__ void apply(const StepNumbers<A>& n, Element<A>& x) {
    const A g = product(x.g, n.factor);
    x.m = fma(g - x.m, n.weight1, x.m);
    x.v = fma(x.v, n.beta2, product(product(n.weight2, g), g));
    A used = x.v;
    if constexpr (kHasTop) used = x.top = x.top > x.v ? x.top : x.v;
    const A ratio = x.m / fma(sqrt(used), n.root_factor, n.eps);
    x.p = fma(ratio, n.minus_step, product(x.p, n.decay));
  }
};

struct LionRule {
  static constexpr bool has_second = false;
  static constexpr bool has_top = false;

  template <class A>
  static __device__ __forceinline__ void apply(const StepNumbers<A>& n, Element<A>& x) {
    const A g = product(x.g, n.factor);
    const A mean = fma(g - x.m, n.weight1, x.m);
    const A sign = mean == 0 ? A{0} : mean;  // NaN stays
    const A change = mean > 0 ? n.minus_step : mean < 0 ? -n.minus_step : sign;
    x.m = fma(g - x.m, n.weight2, x.m);
    x.p = fma(x.p, n.decay, change);
  }
};

}  // namespace transformer_kernels::cuda
