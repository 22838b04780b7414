// SPDX-License-Identifier: MIT
// The elements that dropout keeps, as bits: a byte for 8 keys of a query, made from Philox's random
// numbers by instructions that compare two of them at once.
#pragma once

#include "attention/problem.h"
#include "core/math/philox.h"

namespace transformer_kernels::cuda {

class KeptBits {
 public:
  __device__ explicit KeptBits(const AttentionProblem& p)
      : dropped_((p.drop_below - 1) * kBoth),
        minus_dropped_((0x10001 - p.drop_below & 0xffff) * kBoth) {}

  // The bytes of two queries, in the upper half of a word whose lower half is anything.
  __device__ __forceinline__ std::uint32_t bytes_of(const PhiloxWords& first,
                                                    const PhiloxWords& second) const {
    const std::uint32_t nibbles = nibbles_of(first) + (nibbles_of(second) << 8);
    return nibbles + (nibbles << 20);
  }

  // The bit of key n of 8 in their byte.
  static __device__ __forceinline__ int bit_of(int n) { return n / 2 + (n % 2 == 0 ? 4 : 0); }

 private:
  static constexpr std::uint32_t kBoth = 0x10001;

  // For either half of a word 1 where it stays, else 0.
  __device__ __forceinline__ std::uint32_t is_kept(std::uint32_t random) const {
    return __viaddmin_u16x2(__vmaxu2(random, dropped_), minus_dropped_, kBoth);
  }
  // A bit for each of 8 keys: the even ones from bit 0 on, the odd ones from bit 16 on.
  __device__ __forceinline__ std::uint32_t nibbles_of(const PhiloxWords& random) const {
    std::uint32_t kept = 0;
#pragma unroll
    for (int n = 3; n >= 0; --n) kept = 2 * kept + is_kept(random.word[n]);
    return kept;
  }

  std::uint32_t dropped_;  // the largest number that drops its score, in either half
  std::uint32_t minus_dropped_;
};

}  // namespace transformer_kernels::cuda
