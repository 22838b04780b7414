// SPDX-License-Identifier: MIT
// What the backward kernel on Hopper does for features of scores, and for dropout, on a thread's
// fragment of S^T: one of keys lane / 4 and that 8 below, and of two queries in each 8, from
// 2 (lane % 4) on. Each feature is a loop of its own, so that no score asks which there are.
//
// Mask and dropout are bits, a byte for 8 keys of a query. A lane makes those of queries
// 8 (lane / 4) + 2 (lane % 4) and the next, for both eights of keys: four bytes, one word, which
// is what all lanes of its lane % 4 want for number lane / 4 of their eights of queries.
#pragma once

#include "attention/hopper_backward_plan.h"
#include "attention/score.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/ptx.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

// What scores have beside a scale, and dropout, in the units of the kernel.
struct BackwardExtras {
  AttentionProblem problem;
  float scale;     // of a product: to bits, or with softcap to twice the argument of its tanh
  float cap;       // in bits
  float grown_by;  // what elements that dropout keeps are multiplied with
};

template <class T>
__device__ __forceinline__ std::uint32_t multiply_words(std::uint32_t a, std::uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<T, Half>, __half2, __nv_bfloat162>;
  const Pair product =
      __hmul2(*reinterpret_cast<const Pair*>(&a), *reinterpret_cast<const Pair*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}

// From the words of all lanes: for each of a fragment's 16 pairs all ones in the halves that a set
// bit stands for. body(pair, ones).
template <class Body>
__device__ __forceinline__ void for_each_pair_of_bits(std::uint32_t words, int lane, Body&& body) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int word = load_shared_int(words + (4 * i + lane % 4) * 4);
    // The sign of each byte is the bit of this lane's key.
    const std::uint32_t signs = static_cast<std::uint32_t>(word) << (7 - lane / 4);
    body(2 * i, repeat_signs<0x9988>(signs));
    body(2 * i + 1, repeat_signs<0xbbaa>(signs));
  }
}

// A block of 64 queries by the 16 keys of a warp.
template <class T>
struct BackwardScores {
  const BackwardExtras& of;
  BackwardSequence sequence;
  int batch;
  int head;
  int first_query;
  int first_key;
  int lane;
  std::uint32_t memory;  // the warp's own, shared, kBytes

  static constexpr int kMaskAt = 0;
  static constexpr int kDropoutAt = kWarp * 4;
  static constexpr int kWeightsAt = 2 * kDropoutAt;
  static constexpr int kBytes = kWeightsAt + kWarp * 64;
  static constexpr float kUnit = Exponent<T>::kPerNatural;

  // What can be had before the products are.
  __device__ __forceinline__ void look_ahead() const {
    const AttentionProblem& p = of.problem;
    const bool masked = p.mask.defined();
    const bool drops = p.drop_below != 0;
    if (masked) store_shared_int(memory + kMaskAt + lane * 4, static_cast<int>(visible()));
    if (drops) store_shared_int(memory + kDropoutAt + lane * 4, static_cast<int>(kept()));
    if (masked || drops) __syncwarp();
  }

  // Products become scores in bits; with softcap, `slopes` are their derivatives.
  __device__ __forceinline__ void finish_scores(float (&s)[32], std::uint32_t (&slopes)[16]) const {
    const AttentionProblem& p = of.problem;
    p.softcap != 0 ? cap(s, slopes) : scale(s);
    if (p.slopes.data != nullptr) add_alibi(s);
    if (!p.bias.defined()) return;
    p.bias.dtype == DType::kFloat32 ? add_bias<float>(s) : add_bias<T>(s);
  }

  // Takes what the mask hides from probabilities, and then what dropout does. Where weights differ
  // from probabilities they are kept; `slopes` are those of scores.
  __device__ __forceinline__ void finish_probabilities(std::uint32_t (&probabilities)[16],
                                                       std::uint32_t (&slopes)[16]) const {
    const AttentionProblem& p = of.problem;
    const auto keep = [&](int i, std::uint32_t ones) { probabilities[i] &= ones; };
    if (p.mask.defined()) for_each_pair_of_bits(memory + kMaskAt, lane, keep);
    if (p.softcap != 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) slopes[i] = multiply_words<T>(slopes[i], probabilities[i]);
      keep_weights(slopes);
    } else if (p.drop_below != 0) {
      keep_weights(probabilities);
    }
    if (p.drop_below != 0) for_each_pair_of_bits(memory + kDropoutAt, lane, keep);
  }

  // The gradients of what dropout has kept grow; those of what it dropped end here. Where a
  // probability is 0 for another reason, so is its weight.
  static __device__ __forceinline__ void drop(const BackwardExtras& of,
                                              const std::uint32_t (&probabilities)[16],
                                              float (&gradients)[32]) {
    if (of.problem.drop_below == 0) return;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float p[2];
      widen_word<T>(probabilities[i], p);
      gradients[2 * i] = p[0] != 0 ? gradients[2 * i] * of.grown_by : 0;
      gradients[2 * i + 1] = p[1] != 0 ? gradients[2 * i + 1] * of.grown_by : 0;
    }
  }

  // What the gradients of probabilities 8 i to 8 i + 7 of a lane are multiplied with: those before
  // dropout, times slopes.
  static __device__ __forceinline__ uint4 weights(const BackwardExtras& of,
                                                  const std::uint32_t (&probabilities)[16], int i,
                                                  std::uint32_t memory, int lane) {
    if (of.problem.drop_below != 0 || of.problem.softcap != 0) {
      return load_shared(memory + kWeightsAt + (i * kWarp + lane) * 16);
    }
    return words_of(probabilities, i);
  }

 private:
  static __device__ __forceinline__ uint4 words_of(const std::uint32_t (&words)[16], int i) {
    return {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
  }
  // No other lane reads them.
  __device__ __forceinline__ void keep_weights(const std::uint32_t (&words)[16]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_shared(memory + kWeightsAt + (i * kWarp + lane) * 16, words_of(words, i));
    }
  }

  __device__ __forceinline__ int query(int i) const { return first_query + 8 * i + lane % 4 * 2; }

  // ---------------------------------------------------------------- ahead

  // body(query, key): the byte of eight keys, from this one on, of one of the lane's own queries.
  template <int kUnrolled, class Body>
  __device__ __forceinline__ std::uint32_t word_of(Body&& body) const {
    std::uint32_t word = 0;
#pragma unroll(kUnrolled)
    for (int i = 0; i < 4; ++i) {
      word |= static_cast<std::uint32_t>(body(query(lane / 4) + i % 2, first_key + i / 2 * 8))
              << 8 * i;
    }
    return word;
  }

  // The mask comes in aligned eights, which end where the keys do.
  __device__ __forceinline__ std::uint32_t visible() const {
    const ScoreMap& map = of.problem.mask;
    const std::uint8_t* const base =
        static_cast<const std::uint8_t*>(map.data) + map.offset(batch, head, 0, 0);
    return word_of<4>([&](int query, int key) -> std::uint32_t {
      if (key >= sequence.keys || query >= sequence.queries) return 0;
      const uint2 eight =
          __ldg(reinterpret_cast<const uint2*>(base + query * map.row_stride + key));
      return bits_of_bytes(eight.x) | bits_of_bytes(eight.y) << 4;
    });
  }

  // Of four bytes, which are not 0.
  static __device__ __forceinline__ std::uint32_t bits_of_bytes(std::uint32_t bytes) {
    const std::uint32_t signs = ((bytes & 0x7f7f7f7f) + 0x7f7f7f7f | bytes) & 0x80808080;
    return (signs >> 7) * 0x01020408 >> 24 & 0xf;
  }

  __device__ __forceinline__ std::uint32_t kept() const {
    const AttentionProblem& p = of.problem;
    const Dropout<float> dropout(p);
    const std::int64_t row =
        p.q_offsets ? head * p.queries + sequence.q_begin : (batch * p.heads + head) * p.queries;
    return word_of<1>(
        [&](int query, int key) { return dropout.kept_of(dropout.bits(row + query, key)); });
  }

  // ---------------------------------------------------------------- scores

  __device__ __forceinline__ void scale(float (&s)[32]) const {
#pragma unroll
    for (float& x : s) x *= of.scale;
  }

  // cap * tanh(x) = cap * (1 - u) and its derivative is u (2 - u), with u = 2 / (1 + e^2x). One
  // reciprocal serves four scores. From 2^30 on tanh is 1, and the product of four does not
  // overflow.
  __device__ __forceinline__ void cap(float (&s)[32], std::uint32_t (&slopes)[16]) const {
    constexpr float kMostPower = 30;
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      float d[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        d[n] = 1 + exp2_approximate(minimum_or_nan(s[i + n] * of.scale, kMostPower));
      }
      const float low = d[0] * d[1];
      const float high = d[2] * d[3];
      const float r = 2 * reciprocal_approximate(low * high);
      const float u[4] = {d[1] * (r * high), d[0] * (r * high), d[3] * (r * low), d[2] * (r * low)};
      float slope[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        s[i + n] = __fmaf_rn(-of.cap, u[n], of.cap);
        slope[n] = u[n] * (2 - u[n]);
      }
      slopes[i / 2] = narrow_word<T>(slope);
      slopes[i / 2 + 1] = narrow_word<T>(slope + 2);
    }
  }

  // What lies past the end of a sequence may be anything that is a number.
  template <class V>
  __device__ __forceinline__ void add_bias(float (&s)[32]) const {
    const ScoreMap& map = of.problem.bias;
    const int key = first_key + lane / 4;
    const V* row = static_cast<const V*>(map.data) + map.offset(batch, head, query(0), key);
    const std::int64_t lower = 8 * map.col_stride;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const bool exists = query(i) + c < sequence.queries;
        float& x = s[4 * i + c];
        float& y = s[4 * i + 2 + c];
        if (exists && key < sequence.keys) x = __fmaf_rn(widen(*row), kUnit, x);
        if (exists && key + 8 < sequence.keys) y = __fmaf_rn(widen(row[lower]), kUnit, y);
        row += map.row_stride * (c == 0 ? 1 : 7);
      }
    }
  }

  __device__ __forceinline__ void add_alibi(float (&s)[32]) const {
    const AttentionProblem& p = of.problem;
    const float slope = p.slopes.at(batch, head, 0.0f) * -kUnit;
    const int shift = p.bottom_right ? sequence.keys - sequence.queries : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float place = static_cast<float>(first_key + lane / 4 + 8 * half - query(0) - shift);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[4 * i + 2 * half + c];
          x = __fmaf_rn(slope, fabsf(place - static_cast<float>(8 * i + c)), x);
        }
      }
    }
  }
};

}  // namespace transformer_kernels::cuda
