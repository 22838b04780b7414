// SPDX-License-Identifier: MIT
// A row of logits as the family's CPU kernels read it. Compiled once per instruction set.
#pragma once

#include "core/cpu/row_loop.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr float kMinusInfinity = -__builtin_inff();

TFK_INLINE float natural_log(float value) { return __builtin_logf(value); }
TFK_INLINE double natural_log(double value) { return __builtin_log(value); }
TFK_INLINE float natural_exp(float value) { return __builtin_expf(value); }
TFK_INLINE double natural_exp(double value) { return __builtin_exp(value); }

template <class T>
accumulate_t<T> number_at(const T* p) {
  return reduce_add(load(p, First{1}));
}

#if TFK_ISA_LEVEL == 1 || TFK_ISA_LEVEL == 2
TFK_INLINE Pair tanh(Pair x) { return {tanh(x.even), tanh(x.odd)}; }
#endif

template <class T, bool kCapped, class V = vec_t<T>>
TFK_INLINE V logit(V x, V cap, V inverse) {
  if constexpr (kCapped) {
    return cap * tanh(x * inverse);
  } else {
    return x;
  }
}

// The logit of x, in a row with a cap or with one of 0, which is none.
template <class T, class A = accumulate_t<T>>
A capped_logit(A x, A cap) {
  if (cap == 0) return x;
  using V = vec_t<T>;
  return reduce_max(logit<T, true>(V::of(x), V::of(cap), V::of(1 / cap)));
}

// The largest element that is not NaN; -inf where there is none.
template <class T>
TFK_FLATTEN accumulate_t<T> largest(const T* x, std::int64_t cols) {
  const vec_t<T> lowest = vec_t<T>::of(kMinusInfinity);
  auto top = Slots<T>::of(kMinusInfinity);
  for_each_vector<T>(cols, [&](std::int64_t i, int slot, auto lanes) {
    top[slot] = max(keep<T>(load(x + i, lanes), lanes, lowest), top[slot]);
  });
  return top.largest();
}

}  // namespace transformer_kernels::cpu::TFK_ISA
