// SPDX-License-Identifier: MIT
// The terms of the formula of cross_entropy.h for one row: its label or probabilities, and its
// weights.
#pragma once

#include "core/cuda/power_sum.cuh"
#include "loss/cross_entropy_problem.h"

namespace transformer_kernels::cuda {

// A number that is stored as T or, wide, as what T is summed in.
template <class T>
__device__ __forceinline__ accumulate_t<T> read_number(const void* data, bool is_wide,
                                                       std::int64_t at) {
  return is_wide ? static_cast<const accumulate_t<T>*>(data)[at]
                 : widen(static_cast<const T*>(data)[at]);
}

__device__ __forceinline__ double tangent(double x) { return ::tanh(x); }
// kShort: within 2^-22, for arguments of 16 bits.
template <bool kShort>
__device__ __forceinline__ float tangent(float x) {
  if constexpr (!kShort) return tanhf(x);
  const float power = exp2_approximate(x * 2.8853900817779268f);
  return fmaf(-2.0f, reciprocal_approximate(power + 1.0f), 1.0f);
}

// kAny: probabilities, label smoothing and a soft cap may be there; else a label alone.
template <class T, bool kAny>
class RowTerms {
 public:
  using V = accumulate_t<T>;

  __device__ __forceinline__ RowTerms(const CrossEntropyProblem& p, std::int64_t row)
      : weight_(p.weight),
        weight_is_wide_(p.weight_dtype != p.dtype),
        own_(static_cast<V>(1 - p.label_smoothing)),
        z_loss_(static_cast<V>(p.z_loss)) {
    if constexpr (kAny) {
      uniform_ = static_cast<V>(p.label_smoothing) / static_cast<V>(p.cols);
      cap_ = static_cast<V>(p.softcap);
      inverse_cap_ = cap_ > 0 ? 1 / cap_ : V(0);
      q_ = p.has_labels() ? nullptr
                          : static_cast<const T*>(p.probabilities) + row * p.probabilities_stride;
    }
    if (kAny && !p.has_labels()) return;
    const std::int64_t label = p.label(row);
    ignored_ = label == p.ignore_index;
    if (p.is_class(label)) {
      label_ = label;
      counted_ = weight(label);
    } else {
      counted_ = V(NAN);
    }
    if (ignored_) counted_ = 0;
  }

  __device__ bool ignored() const { return ignored_; }
  // Whether the row has a label that is a class, and its column.
  __device__ bool has_label() const { return label_ >= 0; }
  __device__ std::int64_t label() const { return label_; }
  // The label's own share of a.
  __device__ V own() const { return kAny && q_ != nullptr ? V(0) : own_ * counted_; }

  // z of x.
  __device__ __forceinline__ V logit(V x) const {
    V z[1] = {x};
    cap(z);
    return z[0];
  }
  template <int kSize>
  __device__ __forceinline__ void cap(V (&x)[kSize]) const {
    if constexpr (kAny) {
      if (cap_ == 0) return;
#pragma unroll
      for (V& z : x) z = cap_ * capped_tangent(z * inverse_cap_);
    }
  }
  // d = d * dz / dx at z.
  template <int kSize>
  __device__ __forceinline__ void slope(const V (&z)[kSize], V (&d)[kSize]) const {
    if (cap_ == 0) return;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const V ratio = z[k] * inverse_cap_;
      d[k] *= fma(-ratio, ratio, V(1));
    }
  }

  // Whether columns have shares beside the label's own.
  __device__ bool has_shares() const { return q_ != nullptr || uniform_ != 0; }
  // These, of the columns from `at` on; 0 of those that are not inside(k) of the row.
  template <int kSize, class Inside>
  __device__ __forceinline__ void shares(std::int64_t at, V (&a)[kSize], Inside&& inside) const {
#pragma unroll
    for (int k = 0; k < kSize; ++k) a[k] = inside(k) ? uniform_ : V(0);
    if (q_ != nullptr) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (inside(k)) a[k] = fma(static_cast<V>(widen(q_[at + k])), own_, a[k]);
      }
    }
    if (weight_ != nullptr) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (inside(k)) a[k] *= weight(at + k);
      }
    }
  }

  __device__ __forceinline__ V z_loss(V lse) const {
    return z_loss_ != 0 ? z_loss_ * counted_ * lse * lse : V(0);
  }
  // The factor of a column's probability in the gradient, of the sum of all a.
  __device__ __forceinline__ V power_factor(V share, V lse) const {
    return fma(2 * z_loss_ * counted_, z_loss_ != 0 ? lse : V(0), share);
  }

 private:
  static __device__ __forceinline__ V capped_tangent(V x) {
    if constexpr (std::is_same_v<T, double>) {
      return tangent(x);
    } else {
      return tangent<sizeof(T) == 2>(x);
    }
  }
  __device__ __forceinline__ V weight(std::int64_t col) const {
    return weight_ == nullptr ? V(1) : read_number<T>(weight_, weight_is_wide_, col);
  }

  const void* weight_;
  bool weight_is_wide_;
  bool ignored_ = false;
  std::int64_t label_ = -1;
  V own_;
  V counted_ = 1;
  V z_loss_;
  V uniform_ = 0;
  V cap_ = 0;
  V inverse_cap_ = 0;
  const T* q_ = nullptr;
};

// Over some columns of a row: the largest z and the sum of exp(z - anchor(max)), the sum of a, and
// that of a * (z - origin).
template <class V>
struct alignas(4 * sizeof(V)) LossSums {
  V max;
  V sum;
  V share;
  V logit;
};

template <class T, int kCount, class V>
__device__ __forceinline__ LossSums<V> merge_lanes(LossSums<V> part) {
  const V max = reduce_lanes<Max, kCount>(part.max);
  const V sum = part.sum * power_of<T>(part.max - anchor(max));
  return {max, reduce_lanes<Add, kCount>(sum), reduce_lanes<Add, kCount>(part.share),
          reduce_lanes<Add, kCount>(part.logit)};
}

// dx[j] = (power * exp(z[j] - top - spread) - gain * a[j]) * slope[j].
template <class T, bool kAny, class V = accumulate_t<T>>
struct RowGradient {
  const RowTerms<T, kAny>& terms;
  V top;
  V spread;
  V power;
  V gain;

  // Turns a pack of x into its gradient without the label's own share. `at` is the column of the
  // pack's first element, and inside(k) says whether its k-th element belongs to the row. The
  // label's element is computed again by at_label(), which costs less than to ask each element
  // whether it is the label's.
  template <int kSize, class Inside>
  __device__ __forceinline__ void apply(std::int64_t at, V (&x)[kSize], Inside&& inside) const {
    apply(at, x, V(0), inside);
  }
  __device__ __forceinline__ V at_label(V x) const {
    V v[1] = {x};
    apply(terms.label(), v, gain * terms.own(), [](int) { return true; });
    return v[0];
  }

 private:
  template <int kSize, class Inside>
  __device__ __forceinline__ void apply(std::int64_t at, V (&x)[kSize], V own,
                                        Inside&& inside) const {
    using E = Exponent<T>;
    const V rest = -spread * E::kPerNatural;
    terms.cap(x);
    V d[kSize];
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      d[k] = power * E::power(fma(x[k] - top, V(E::kPerNatural), rest));
    }
    if (kAny && terms.has_shares()) {
      V a[kSize];
      terms.shares(at, a, inside);
#pragma unroll
      for (int k = 0; k < kSize; ++k) d[k] = fma(-gain, a[k], d[k]);
    }
#pragma unroll
    for (V& v : d) v -= own;
    if constexpr (kAny) terms.slope(x, d);
#pragma unroll
    for (int k = 0; k < kSize; ++k) x[k] = d[k];
  }
};

}  // namespace transformer_kernels::cuda
