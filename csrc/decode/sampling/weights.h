// SPDX-License-Identifier: MIT
// Weights of tokens, w of sample_logits.h, in vectors. Compiled once per instruction set; see
// core/cpu/isa.h. Every operation here is rounded by itself, and there is one order of them, so
// that all sets, and PyTorch's operations (transformer_kernels/ops/decode/_weights.py), have the
// same bits.
#pragma once

#include "core/cpu/simd_math.h"
#include "decode/sampling/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {

using Numbers = Vec<float>;

// log2 of the weight. Below the bound a weight is 0 when it is rounded. An infinity has no distance
// from itself, which kFinite leaves out.
template <bool kFinite = false>
TFK_INLINE Numbers exponent(const Weighing& by, Numbers z) {
  const Numbers top = Numbers::of(by.top);
  Numbers below = (z - top) * Numbers::of(by.scale);
  if constexpr (!kFinite) below = select(equal(z, top), Numbers::of(0), below);
  return max(below, Numbers::of(kLeastExponent));
}

// 2^(40 + x).
TFK_INLINE Numbers units(Numbers x) {
  const Numbers n = round_product(x, Numbers::of(1));
  const Numbers r = x - whole(n);
  constexpr PowerOfTwo kPower;
  Numbers y = Numbers::of(kPower.term[0]);
  for (int i = 1; i < kPower.kTerms; ++i) y = y * r + Numbers::of(kPower.term[i]);
  return times_power_of_two(y, n);
}

// The weight times 2^40, not yet rounded, of a token that passes all limits. Without limits, the
// largest logit is finite.
template <bool kLimited>
TFK_INLINE Numbers weight_of(const Weighing& by, Numbers z) {
  const Numbers x = exponent<!kLimited>(by, z);
  const Numbers w = units(x);
  if constexpr (!kLimited) return w;
  const Numbers none = Numbers::of(0);
  const Numbers least = Numbers::of(by.least);
  const Numbers above = select(equal(z, least), none, z - least);  // of infinities as well
  const Numbers near = select(is_negative(above), none, w);
  const Numbers distance = abs(x - Numbers::of(by.mean));
  const Numbers typical = select(is_negative(Numbers::of(by.reach) - distance), none, near);
  return select(is_negative(w - Numbers::of(by.fewest)), none, typical);
}

// A probability times 2^40.
TFK_INLINE Numbers weight_of_probability(Numbers p) {
  return min(max(p, Numbers::of(0)), Numbers::of(1)) * Numbers::of(kUnit);
}

}  // namespace transformer_kernels::cpu::TFK_ISA
