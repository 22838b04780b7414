// SPDX-License-Identifier: MIT
// The steps from a product of q and k to its exponential, for every CUDA engine: one score at a
// time, and the random bits of dropout. Queries and keys count from the begin of their sequence,
// and fit 32 bits.
#pragma once

#include "attention/problem.h"
#include "core/cuda/exponent.cuh"
#include "core/cuda/pack.cuh"
#include "core/math/philox.h"

namespace transformer_kernels::cuda {

// Never a part of a multiply-add: the scores of a row have to be rounded as the largest of them
// was.
__device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }

template <class A>
struct Score {
  A value;  // -inf where the mask hides the key
  A slope;  // the derivative by scale * product; 1 without softcap
};

// The scores of one head of one sequence, as the definition has them. T is q's dtype.
template <class T>
class HeadScores {
 public:
  using A = accumulate_t<T>;
  __device__ HeadScores(const AttentionProblem& p, const Sequence& s, int batch, int head)
      : p_(p),
        shift_(p.bottom_right ? static_cast<int>(s.keys - s.queries) : 0),
        left_(bound(p.window_left)),
        right_(bound(p.window_right)),
        scale_(static_cast<A>(p.softcap != 0 ? p.scale / p.softcap : p.scale)),
        cap_(static_cast<A>(p.softcap)),
        alibi_(p.slopes.at(batch, head, A{0})),
        bias_(p.bias.offset(batch, head, 0, 0)),
        mask_(p.mask.offset(batch, head, 0, 0)) {}

  // How far the key stands after the one on the diagonal of the query.
  __device__ __forceinline__ int place(int query, int key) const { return key - query - shift_; }

  // Whether the query sees the key by its place.
  __device__ __forceinline__ bool sees(int query, int key) const {
    const int distance = place(query, key);
    return distance >= -left_ && distance <= right_;
  }

  // Whether every one of these queries sees every one of these keys by its place.
  __device__ __forceinline__ bool all_seen(int first_query, int last_query, int first_key,
                                           int last_key) const {
    return place(last_query, first_key) >= -left_ && place(first_query, last_key) <= right_;
  }

  // The first factor of a product; without softcap it is the only step.
  __device__ __forceinline__ A scale() const { return scale_; }

  // With softcap: what becomes of product * scale().
  __device__ __forceinline__ Score<A> capped(A x) const {
    const A t = hyperbolic_tangent(x);
    return {rounded_product(t, cap_), 1 - t * t};
  }

  // Taken off a score for each place between its key and the diagonal.
  __device__ __forceinline__ A alibi() const { return alibi_; }

  // The score of a product where the key is in sight. Without kHasFeatures the problem has to have
  // plain scores.
  template <bool kHasFeatures>
  __device__ __forceinline__ Score<A> score(A product, int query, int key) const {
    Score<A> s{rounded_product(product, scale_), 1};
    if constexpr (kHasFeatures) {
      if (p_.softcap != 0) s = capped(s.value);
      s.value -= alibi_ * static_cast<A>(abs(place(query, key)));
      if (p_.bias.defined()) s.value += bias(query, key);
      if (p_.mask.defined() && !visible(query, key)) s.value = -static_cast<A>(INFINITY);
    }
    return s;
  }

 private:
  // Not bound_of(): the plain engine takes sequences of more than kNoBound rows.
  static __device__ int bound(std::int64_t window) {
    constexpr std::int64_t kFar = 0x7fffffff;
    return static_cast<int>(window < 0 || window > kFar ? kFar : window);
  }

  static __device__ __forceinline__ double hyperbolic_tangent(double x) { return tanh(x); }
  static __device__ __forceinline__ float hyperbolic_tangent(float x) {
    if constexpr (std::is_same_v<T, float>) return tanhf(x);
    // Its error is some units of 2^-24 whatever x is: as much as that of the product.
    return 1 - __fdividef(2, 1 + Exponent<T>::power(2 * Exponent<T>::kPerNatural * x));
  }

  __device__ __forceinline__ A bias(int query, int key) const {
    const std::int64_t at = bias_ + query * p_.bias.row_stride + key * p_.bias.col_stride;
    if (p_.bias.dtype == DType::kFloat32) return static_cast<const float*>(p_.bias.data)[at];
    return widen(static_cast<const T*>(p_.bias.data)[at]);
  }
  __device__ __forceinline__ bool visible(int query, int key) const {
    const std::int64_t at = mask_ + query * p_.mask.row_stride + key * p_.mask.col_stride;
    return static_cast<const std::uint8_t*>(p_.mask.data)[at] != 0;
  }

  const AttentionProblem& p_;
  int shift_;
  int left_;
  int right_;
  A scale_;
  A cap_;
  A alibi_;
  std::int64_t bias_;
  std::int64_t mask_;
};

// The elements that dropout keeps, and their factor.
template <class A>
class Dropout {
 public:
  __device__ explicit Dropout(const AttentionProblem& p)
      : below_(p.drop_below),
        seed_(p.seed_data ? p.seed_data[0] : p.seed),
        offset_(p.seed_data ? p.seed_data[1] : p.offset),
        calls_per_row_((p.keys + kPerCall - 1) / kPerCall),
        // Where everything is dropped nothing is kept, and the factor unused.
        kept_(static_cast<A>(kValues) /
              static_cast<A>(p.drop_below < kValues ? kValues - p.drop_below : kValues)) {}

  // The call whose random bits are those of 8 keys, the ones around `key`; `row` is the query's
  // place in lse. The next row's is calls_per_row() later, that of the next 8 keys one.
  __device__ __forceinline__ std::uint64_t call(std::int64_t row, int key) const {
    return static_cast<std::uint64_t>(row * calls_per_row_ + key / kPerCall);
  }
  __device__ __forceinline__ std::uint64_t calls_per_row() const { return calls_per_row_; }

  __device__ __forceinline__ PhiloxWords bits(std::uint64_t call) const {
    return philox(seed_, call, offset_);
  }
  __device__ __forceinline__ PhiloxWords bits(std::int64_t row, int key) const {
    return bits(call(row, key));
  }

  // A bit for each of the 8 keys: 1 where it stays.
  __device__ __forceinline__ std::uint8_t kept_of(const PhiloxWords& bits) const {
    unsigned kept = 0;
#pragma unroll
    for (int n = 0; n < kPerCall; ++n) {
      kept |= (bits.word[n / 2] >> (n % 2 * 16) & 0xffff) < below_ ? 0u : 1u << n;
    }
    return static_cast<std::uint8_t>(kept);
  }

  // The factor of elements that dropout keeps.
  __device__ __forceinline__ A kept() const { return kept_; }

  // 0 where the bits drop the key, else 1 over the probability of keeping.
  __device__ __forceinline__ A factor(const PhiloxWords& bits, int key) const {
    const int n = key % kPerCall;
    const std::uint32_t pair =
        n & 4 ? (n & 2 ? bits.word[3] : bits.word[2]) : (n & 2 ? bits.word[1] : bits.word[0]);
    return (pair >> (n % 2 * 16) & 0xffff) < below_ ? A{0} : kept_;
  }

 private:
  static constexpr int kPerCall = 8;
  static constexpr std::uint32_t kValues = 65536;

  std::uint32_t below_;
  std::uint64_t seed_;
  std::uint64_t offset_;
  std::int64_t calls_per_row_;
  A kept_;
};

}  // namespace transformer_kernels::cuda
