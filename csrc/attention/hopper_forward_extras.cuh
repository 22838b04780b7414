// SPDX-License-Identifier: MIT
// What makes scores of products beside the scale, on the fragment of one thread: a loop over all
// its scores for each feature in use, so that no score asks which there are, and loads come in
// batches. See HeadScores for one score at a time.
#pragma once

#include "attention/hopper_forward_tiles.cuh"
#include "core/cuda/exponent.cuh"
#include "core/cuda/pack.cuh"

namespace transformer_kernels::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// s[4 i + 2 half + c] belongs to query + 8 half and key + 8 i + c. Pairs of keys are loaded at
// once, so bias and mask have an even number of keys, and rows that begin at multiples of a pair.
template <class T, int kSums>
class ExtraScores {
 public:
  __device__ __forceinline__ ExtraScores(const HopperForward& p, const ForwardTile& t, int query,
                                         int key)
      : p_(p),
        t_(t),
        query_(query),
        key_(key) {}

  __device__ __forceinline__ void apply(float (&s)[kSums]) const {
    const AttentionProblem& problem = p_.problem;
    problem.softcap != 0 ? cap(s) : scale(s);
    if (problem.slopes.data != nullptr) add_alibi(s);
    if (problem.bias.defined()) {
      problem.bias.dtype == DType::kFloat32 ? add_bias<float>(s) : add_bias<T>(s);
    }
    if (problem.mask.defined()) hide_masked(s);
  }

 private:
  static constexpr float kUnit = Exponent<T>::kPerNatural;

  __device__ __forceinline__ void scale(float (&s)[kSums]) const {
#pragma unroll
    for (float& v : s) v *= p_.scale;
  }

  // cap * tanh(x) = cap - 2 cap / (1 + e^2x), with one reciprocal for four scores of a row. From
  // 2^30 on tanh is 1, and the product of four does not overflow.
  __device__ __forceinline__ void cap(float (&s)[kSums]) const {
    constexpr float kMostPower = 30;
#pragma unroll
    for (int i = 0; i < kSums; i += 8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* const v[4] = {&s[i + 2 * half], &s[i + 2 * half + 1], &s[i + 2 * half + 4],
                             &s[i + 2 * half + 5]};
        float d[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          d[n] = 1 + exp2_approximate(minimum_or_nan(*v[n] * p_.scale, kMostPower));
        }
        const float low = d[0] * d[1];
        const float high = d[2] * d[3];
        const float r = reciprocal_approximate(low * high) * (-2 * p_.cap);
        *v[0] = __fmaf_rn(d[1], r * high, p_.cap);
        *v[1] = __fmaf_rn(d[0], r * high, p_.cap);
        *v[2] = __fmaf_rn(d[3], r * low, p_.cap);
        *v[3] = __fmaf_rn(d[2], r * low, p_.cap);
      }
    }
  }

  __device__ __forceinline__ void add_alibi(float (&s)[kSums]) const {
    const float slope = p_.problem.slopes.at(t_.batch, t_.head, 0.0f) * -kUnit;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int diagonal = query_ + 8 * half + shift_of(p_, t_.queries, t_.keys);
      const float place = static_cast<float>(key_ - diagonal);
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& v = s[4 * i + 2 * half + c];
          v = __fmaf_rn(slope, fabsf(place + static_cast<float>(8 * i + c)), v);
        }
      }
    }
  }

  // Calls use(v, pair) with each two scores and what the map holds for them; keys behind the last
  // and queries behind the last get anything.
  template <class Pair, class Use>
  __device__ __forceinline__ void for_each_pair(const ScoreMap& map, float (&s)[kSums],
                                                Use&& use) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = min(query_ + 8 * half, t_.queries - 1);
      const Pair* const row =
          static_cast<const Pair*>(map.data) + (map.offset(t_.batch, t_.head, query, key_) >> 1);
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        Pair pair{};
        if (key_ + 8 * i < t_.keys) pair = __ldg(row + 4 * i);
        use(&s[4 * i + 2 * half], pair);
      }
    }
  }

  template <class E>
  __device__ __forceinline__ void add_bias(float (&s)[kSums]) const {
    using Pair = std::conditional_t<std::is_same_v<E, float>, float2, std::uint32_t>;
    for_each_pair<Pair>(p_.problem.bias, s, [](float* v, Pair pair) {
      float bias[2];
      if constexpr (std::is_same_v<E, float>) {
        bias[0] = pair.x;
        bias[1] = pair.y;
      } else {
        widen_word<E>(pair, bias);
      }
      v[0] = __fmaf_rn(bias[0], kUnit, v[0]);
      v[1] = __fmaf_rn(bias[1], kUnit, v[1]);
    });
  }

  __device__ __forceinline__ void hide_masked(float (&s)[kSums]) const {
    for_each_pair<std::uint16_t>(p_.problem.mask, s, [](float* v, std::uint16_t pair) {
      if ((pair & 0xff) == 0) v[0] = -INFINITY;
      if (pair >> 8 == 0) v[1] = -INFINITY;
    });
  }

  const HopperForward& p_;
  const ForwardTile& t_;
  const int query_;
  const int key_;
};

#endif  // sm_90a

}  // namespace transformer_kernels::cuda
