// SPDX-License-Identifier: MIT
// The router's CUDA kernels share this header: it reads a warp's piece of a token's logits, and has
// their noise and scores.
//
// A warp reads a token's logits in pieces of 128 kQuads columns. A lane owns kQuads quads of four
// neighbouring columns, one after the other, so that of two lanes the lower has the lower columns.
#pragma once

#include "core/cuda/math.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/math/activation.h"
#include "core/math/philox.h"
#include "moe/router/problem.h"

namespace transformer_kernels::cuda {

inline constexpr int kRouterWarps = 8;  // of a CTA, a token each
inline constexpr int kRouterThreads = kRouterWarps * kWarp;

__device__ __forceinline__ float natural_exp(float v) { return expf(v); }
__device__ __forceinline__ double natural_exp(double v) { return ::exp(v); }
__device__ __forceinline__ float natural_log(float v) { return logf(v); }
__device__ __forceinline__ double natural_log(double v) { return ::log(v); }
__device__ __forceinline__ float root(float v) { return sqrtf(v); }
__device__ __forceinline__ double root(double v) { return ::sqrt(v); }
__device__ __forceinline__ float log1p_of(float v) { return log1pf(v); }
__device__ __forceinline__ double log1p_of(double v) { return ::log1p(v); }
// 1 / v to the last bit or the one before: a division would be a call, and with it spills.
__device__ __forceinline__ float inverse(float v) {
  const float guess = reciprocal_approximate(v);
  return fmaf(guess, fmaf(-v, guess, 1.0f), guess);
}
__device__ __forceinline__ double inverse(double v) { return 1 / v; }
__device__ __forceinline__ void sine_and_cosine(float turns, float* s, float* c) {
  sincospif(2 * turns, s, c);
}
__device__ __forceinline__ void sine_and_cosine(double turns, double* s, double* c) {
  sincospi(2 * turns, s, c);
}

// ---------------------------------------------------------------------------- noise

inline constexpr std::uint64_t kNormalCounters = std::uint64_t{1} << 63;

struct RouterKey {
  std::uint64_t seed;
  std::uint64_t offset;

  __device__ __forceinline__ explicit RouterKey(const RouterDraw& draw)
      : seed(draw.seed_data != nullptr ? draw.seed_data[0] : draw.seed),
        offset(draw.seed_data != nullptr ? draw.seed_data[1] : draw.offset) {}
};

template <class V>
__device__ __forceinline__ V uniform(std::uint32_t word) {
  return static_cast<V>(static_cast<std::int32_t>(word)) * static_cast<V>(0x1p-31);
}

template <class V>
__device__ __forceinline__ void draw_normals(std::uint32_t a, std::uint32_t b, V* normals) {
  constexpr V kStep = static_cast<V>(0x1p-32);
  const V radius = root(-2 * natural_log((static_cast<V>(a) + V(0.5)) * kStep));
  sine_and_cosine((static_cast<V>(b) + V(0.5)) * kStep, &normals[1], &normals[0]);
  normals[0] *= radius;
  normals[1] *= radius;
}

// The slope of each of four noisy logits in its logit.
template <class V>
__device__ __forceinline__ void draw_slopes(const RouterProblem& p, const RouterKey& key,
                                            std::uint64_t counter, V* slope) {
  const PhiloxWords words = philox(key.seed, counter, key.offset);
#pragma unroll
  for (int i = 0; i < 4; ++i) slope[i] = 1 + static_cast<V>(p.jitter) * uniform<V>(words.word[i]);
}

// Makes four logits noisy.
template <class V>
__device__ __forceinline__ void disturb(const RouterProblem& p, const RouterKey& key,
                                        std::uint64_t counter, V* z) {
  if (p.jitter > 0) {
    V slope[4];
    draw_slopes(p, key, counter, slope);
#pragma unroll
    for (int i = 0; i < 4; ++i) z[i] *= slope[i];
  }
  if (p.noise > 0) {
    const PhiloxWords words = philox(key.seed, counter | kNormalCounters, key.offset);
    V normals[4];
    draw_normals(words.word[0], words.word[1], normals);
    draw_normals(words.word[2], words.word[3], normals + 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) z[i] += static_cast<V>(p.noise) * normals[i];
  }
}

__device__ __forceinline__ std::uint64_t counter_of(const RouterProblem& p, std::int64_t token,
                                                    int col) {
  return static_cast<std::uint64_t>(token * p.counters() + col / 4);
}

// ---------------------------------------------------------------------------- logits

template <class T>
struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) Quad {
  T element[4];
};

// Whether quads of a matrix of so many columns lie on their own size.
template <class T>
bool quads_fit(const Rows& matrix, int cols) {
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.data);
  return cols % 4 == 0 && matrix.stride % 4 == 0 && address % alignof(Quad<T>) == 0;
}

// Columns [col, col + 4) of a row; those beyond its end are `outside`.
template <class T, class V>
__device__ __forceinline__ void load_quad(const T* row, int col, int cols, bool aligned, V outside,
                                          V* z) {
  if (aligned) {
    if (col < cols) {
      const Quad<T> quad = *reinterpret_cast<const Quad<T>*>(row + col);
#pragma unroll
      for (int i = 0; i < 4; ++i) z[i] = widen(quad.element[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) z[i] = outside;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) z[i] = col + i < cols ? V(widen(row[col + i])) : outside;
  }
}

template <class T, class V>
__device__ __forceinline__ void store_quad(T* row, int col, int cols, bool aligned, const V* z) {
  if (aligned && col < cols) {
    Quad<T> quad;
#pragma unroll
    for (int i = 0; i < 4; ++i) quad.element[i] = narrow<T>(z[i]);
    *reinterpret_cast<Quad<T>*>(row + col) = quad;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (col + i < cols) row[col + i] = narrow<T>(z[i]);
    }
  }
}

// A token of a kernel: its logits as a warp reads them.
template <class T, int kQuads>
struct Logits {
  using V = accumulate_t<T>;
  static constexpr int kCols = 4 * kQuads;          // of a lane
  static constexpr int kPieceCols = kWarp * kCols;  // of a warp

  const RouterProblem& p;
  RouterKey key;
  const T* row;
  std::int64_t token;
  bool aligned;

  __device__ __forceinline__ Logits(const RouterProblem& problem, std::int64_t of, bool is_aligned)
      : p(problem),
        key(problem.draw),
        row(static_cast<const T*>(problem.x.data) + of * problem.x.stride),
        token(of),
        aligned(is_aligned) {}

  __device__ __forceinline__ int pieces() const {
    return (p.experts + kPieceCols - 1) / kPieceCols;
  }
  __device__ __forceinline__ static int first_col(int piece) {
    return piece * kPieceCols + static_cast<int>(threadIdx.x % kWarp) * kCols;
  }

  // Noisy logits; -inf beyond the end of the row.
  template <bool kNoisy>
  __device__ __forceinline__ void load(int piece, V* z) const {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int col = first_col(piece) + 4 * q;
      load_quad(row, col, p.experts, aligned, V(-INFINITY), z + 4 * q);
      if (kNoisy && p.is_noisy() && col < p.experts) {
        disturb(p, key, counter_of(p, token, col), z + 4 * q);
      }
    }
  }

  template <bool kNoisy>
  __device__ __forceinline__ V at(int col) const {
    if (!kNoisy || !p.is_noisy()) return widen(row[col]);
    V z[4];
    const int first = col / 4 * 4;
    load_quad(row, first, p.experts, aligned, V(0), z);
    disturb(p, key, counter_of(p, token, first), z);
    V found = z[0];
#pragma unroll
    for (int i = 1; i < 4; ++i) found = col % 4 == i ? z[i] : found;
    return found;
  }

  __device__ __forceinline__ V slope_at(int col) const {
    if (!(p.jitter > 0)) return 1;
    V slope[4];
    draw_slopes(p, key, counter_of(p, token, col), slope);
    V found = slope[0];
#pragma unroll
    for (int i = 1; i < 4; ++i) found = col % 4 == i ? slope[i] : found;
    return found;
  }
};

// ---------------------------------------------------------------------------- scores

// The largest logit that is not NaN, and the sum of exponentials relative to it.
template <class V>
struct SoftmaxSum {
  V top = -INFINITY;
  V sum = 0;

  // Adds the logits of a warp; those beyond the end of the row are -inf.
  template <int kCount>
  __device__ __forceinline__ void add(const V (&z)[kCount]) {
    V largest = top;
#pragma unroll
    for (int i = 0; i < kCount; ++i) largest = Max()(largest, z[i]);
    largest = reduce_lanes<Max>(largest);
    const V base = largest == V(-INFINITY) ? V(0) : largest;
    V own = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) own += natural_exp(z[i] - base);
    const V before = sum == 0 ? V(0) : sum * natural_exp(top - largest);
    sum = before + reduce_lanes<Add>(own);
    top = largest;
  }
  __device__ __forceinline__ V lse() const { return top + natural_log(sum); }
};

template <class V>
__device__ __forceinline__ V sqrt_softplus(V z) {
  const V positive = z > 0 ? z : z == V(-INFINITY) ? V(0) : z - z;  // 0, or NaN
  return root(positive + log1p_of(natural_exp(z < 0 ? z : -z)));
}

// A score that is not softmax, of its own logit alone, and its slope from the score.
template <class V>
__device__ __forceinline__ V own_score(RouterScore score, V z) {
  if (score == RouterScore::kSigmoid) return math::sigmoid(math::Accurate{}, z).value;
  return sqrt_softplus(z);
}
template <class V>
__device__ __forceinline__ V own_slope(RouterScore score, V z, V s) {
  const math::Sigmoid<V> of = math::sigmoid(math::Accurate{}, z);
  if (score == RouterScore::kSigmoid) return of.value * of.complement;
  return s == 0 ? V(0) : of.value * inverse(2 * s);
}

// Parts of the weights of the chosen: weights[k] = scale * share * factor, lane k having
// the share of the k-th of them, and lanes behind the last none.
template <class V>
struct ChosenShare {
  V share;
  V factor;
};

template <class V>
__device__ __forceinline__ ChosenShare<V> share_of(const RouterProblem& p, V z,
                                                   const SoftmaxSum<V>& all) {
  const bool is_chosen = static_cast<int>(threadIdx.x % kWarp) < p.chosen;
  const bool is_softmax = p.score == RouterScore::kSoftmax;
  V share = 0;
  V top = all.top;
  if (is_softmax && p.renormalize) top = reduce_lanes<Max>(is_chosen ? z : V(-INFINITY));
  if (is_chosen) share = is_softmax ? natural_exp(z - top) : own_score(p.score, z);
  V sum = 1;
  if (p.renormalize) {
    sum = reduce_lanes<Add>(share) + (is_softmax ? V(0) : static_cast<V>(kRouterEpsilon));
  } else if (is_softmax) {
    sum = all.sum;
  }
  return {share, inverse(sum)};
}

}  // namespace transformer_kernels::cuda
