// SPDX-License-Identifier: MIT
// Rows whose largest score is far from 0. For other rows exp(score - top) is a power of 2 whose
// exponent is one multiply-add, which rounds top * log2(e): an error of up to 2^-24 |top|. In a far
// row, as masks of -1e9 make, the top is subtracted first, which is exact for the scores that
// count. The rounded lse of such a row loses log(sum): lse_rest holds the part that rounding takes
// off.
#pragma once

namespace transformer_kernels {

// The largest |score| of a row that is not far, in units of scores or of Exponent.
inline constexpr float kFarScore = 1024;

template <class A>
[[gnu::always_inline]] constexpr bool is_far(A top) {
  constexpr A kInfinity = static_cast<A>(__builtin_huge_valf());
  const A size = top < 0 ? -top : top;
  return size > static_cast<A>(kFarScore) && size < kInfinity;
}

// The log-sum-exp of a row, in two numbers.
template <class A>
struct LogSumExp {
  A lse;
  A rest;  // 0 but for far rows
};

// `log_sum` is that of exp(score - top), -inf of a row that sees no key.
template <class A>
[[gnu::always_inline]] constexpr LogSumExp<A> log_sum_exp(A top, A log_sum) {
  const A lse = top + log_sum;
  return {lse, is_far(top) && is_far(lse) ? (top - lse) + log_sum : A{0}};
}

}  // namespace transformer_kernels
