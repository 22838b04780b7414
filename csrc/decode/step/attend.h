// SPDX-License-Identifier: MIT
// Attention of a row to one block of the cache. Heads that share keys and values are taken
// together, so that these are widened once. For sources that are compiled once per instruction set.
#pragma once

#include "decode/step/kernels.h"
#include "decode/step/lanes.h"

namespace transformer_kernels::cpu::TFK_ISA {

using decode::AttendTask;
using decode::kBlockPositions;

inline constexpr int kHeadsAtOnce = TFK_ISA_LEVEL >= 2 ? 4 : 2;
inline constexpr int kColumnsAtOnce = TFK_ISA_LEVEL >= 2 ? 4 : 2;  // in vectors of 16
inline constexpr float kNoScore = -0x1p120f;                       // of positions out of sight

// Scores of 16 positions, from `first` on.
template <int kHeads>
TFK_INLINE void score_positions(const AttendTask& task, const float* q, std::int64_t first,
                                float (&scores)[kHeads][kBlockPositions]) {
  const Half* const keys = task.block + first * decode::padded_dim(task.dim);
  Floats even[kHeads];
  Floats odd[kHeads];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) even[h] = odd[h] = Floats::of(0);
  for (std::int64_t d = 0; d < task.dim; d += 2) {
    const Floats a = Floats::load(keys + d * 16);
    const Floats b = Floats::load(keys + d * 16 + 16);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      even[h] = fma(a, Vec<float>::of(q[h * task.dim + d]), even[h]);
      odd[h] = fma(b, Vec<float>::of(q[h * task.dim + d + 1]), odd[h]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) (even[h] + odd[h]).store_to(scores[h] + first);
}

// Replaces the scores of a head by exponentials; returns what the sums so far are to be scaled by.
TFK_INLINE float exponentiate(const AttendTask& task, float (&scores)[kBlockPositions],
                              decode::SoftmaxState& state) {
  using V = Vec<float>;
  const std::int64_t from = task.begin / kLanes * kLanes;
  for (std::int64_t p = from; p < task.end; p += kLanes) {
    V s = load(scores + p, All{});
    if (task.softcap > 0) {
      s = tanh(s * V::of(1 / task.softcap)) * V::of(task.softcap);
      store(scores + p, s, All{});
    }
  }
  for (std::int64_t p = from; p < task.begin; ++p) scores[p] = kNoScore;
  const std::int64_t end = (task.end + kLanes - 1) / kLanes * kLanes;
  for (std::int64_t p = task.end; p < end; ++p) scores[p] = kNoScore;
  V tops = V::of(task.first ? kNoScore : state.top);
  for (std::int64_t p = from; p < end; p += kLanes) tops = max(load(scores + p, All{}), tops);
  const float top = reduce_max(tops);
  V sums = V::of(0);
  for (std::int64_t p = from; p < end; p += kLanes) {
    const V e = exp(load(scores + p, All{}) - V::of(top));
    store(scores + p, e, All{});
    sums = sums + e;
  }
  const float old = task.first ? 0 : __builtin_expf(state.top - top);
  state = {top, reduce_add(sums) + (task.first ? 0 : state.sum * old)};
  return old;
}

// Adds values to some columns of the sums, which were scaled before.
template <int kHeads, int kColumns>
TFK_INLINE void add_values(const AttendTask& task, const float (&scores)[kHeads][kBlockPositions],
                           const float (&old)[kHeads], std::int64_t col, float* out) {
  const std::int64_t dim = decode::padded_dim(task.dim);
  const Half* v = task.block + (kBlockPositions + task.begin) * dim + col;
  Floats sums[kHeads][kColumns];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      float* const own = out + h * dim + col + c * 16;
      sums[h][c] = task.first ? Floats::of(0) : Floats::load(own) * Vec<float>::of(old[h]);
    }
  }
  for (std::int64_t p = task.begin; p < task.end; ++p, v += dim) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const Floats x = Floats::load(v + c * 16);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        sums[h][c] = fma(x, Vec<float>::of(scores[h][p]), sums[h][c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sums[h][c].store_to(out + h * dim + col + c * 16);
  }
}

template <int kHeads>
TFK_INLINE void attend_heads(const AttendTask& task, std::int64_t head) {
  const std::int64_t dim = decode::padded_dim(task.dim);
  alignas(64) float scores[kHeads][kBlockPositions];
  for (std::int64_t p = task.begin / 16 * 16; p < task.end; p += 16) {
    score_positions<kHeads>(task, task.q + head * task.dim, p, scores);
  }
  float old[kHeads];
  for (int h = 0; h < kHeads; ++h) old[h] = exponentiate(task, scores[h], task.state[head + h]);
  float* const out = task.out + head * dim;
  std::int64_t col = 0;
  for (; col + kColumnsAtOnce * 16 <= dim; col += kColumnsAtOnce * 16) {
    add_values<kHeads, kColumnsAtOnce>(task, scores, old, col, out);
  }
  for (; col < dim; col += 16) add_values<kHeads, 1>(task, scores, old, col, out);
}

TFK_FLATTEN inline void attend(const AttendTask& task) {
  std::int64_t head = 0;
  for (; task.heads - head >= kHeadsAtOnce; head += kHeadsAtOnce) {
    attend_heads<kHeadsAtOnce>(task, head);
  }
  if constexpr (kHeadsAtOnce == 4) {
    if (task.heads - head == 3) return attend_heads<3>(task, head);
    if (task.heads - head == 2) return attend_heads<2>(task, head);
  }
  if (head < task.heads) attend_heads<1>(task, head);
}

}  // namespace transformer_kernels::cpu::TFK_ISA
