// SPDX-License-Identifier: MIT
// Features of scores, and dropout, in the backward kernel on Hopper, on a thread's fragment of S^T:
// keys lane / 4 and that plus 8, and two queries in each 8, from 2 (lane % 4) on. Each feature is a
// separate loop, so that no score tests which features there are.
//
// Mask and dropout are bits, a byte for 8 keys of a query; the mask's bits are in the order of the
// keys, those of dropout in the order of KeptBits. A lane makes the bytes of queries 8 (lane / 4) +
// 2 (lane % 4) and the next, for both eights of keys. These four bytes form one word, which all
// lanes with its lane % 4 need for number lane / 4 of their eights of queries.
#pragma once

#include "attention/common/scores.cuh"
#include "attention/sm90/backward/storage.cuh"
#include "attention/sm90/kept_bits.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/ptx.cuh"

namespace transformer_kernels::cuda {

template <class T>
using PackedPair = std::conditional_t<std::is_same_v<T, Half>, __half2, __nv_bfloat162>;

template <class T>
__device__ __forceinline__ PackedPair<T> pair_of(std::uint32_t word) {
  return *reinterpret_cast<const PackedPair<T>*>(&word);
}

template <class T>
__device__ __forceinline__ std::uint32_t multiply_words(std::uint32_t a, std::uint32_t b) {
  const PackedPair<T> product = __hmul2(pair_of<T>(a), pair_of<T>(b));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}

// All ones in the halves that are not 0.
template <class T>
__device__ __forceinline__ std::uint32_t nonzero_halves(std::uint32_t word) {
  return __hne2_mask(pair_of<T>(word), pair_of<T>(0));
}

// Zeros in the halves that are below 0.
template <class T>
__device__ __forceinline__ std::uint32_t positive_halves(std::uint32_t word) {
  const PackedPair<T> positive = __hmax2(pair_of<T>(word), pair_of<T>(0));
  return *reinterpret_cast<const std::uint32_t*>(&positive);
}

// Eight of dS^T from weights and dP^T - delta, which change(j) gives.
template <class T, class Change>
__device__ __forceinline__ void differentiate_scores(const std::uint32_t (&weights)[4],
                                                     Change&& change, std::uint32_t* ds) {
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    float x[2];
    widen_word<T>(weights[j / 2], x);
    x[0] *= change(j);
    x[1] *= change(j + 1);
    ds[j / 2] = narrow_word<T>(x);
  }
}

// Eight of dS^T from weights and dP^T.
template <class T>
__device__ __forceinline__ void differentiate_scores(const std::uint32_t (&weights)[4],
                                                     const float* dp, const float4& minus_delta,
                                                     std::uint32_t* ds) {
  const float minus[4] = {minus_delta.x, minus_delta.y, minus_delta.z, minus_delta.w};
  const auto change = [&](int j) { return dp[j] + minus[j / 4 * 2 + j % 2]; };
  differentiate_scores<T>(weights, change, ds);
}

// Eight of dS^T with dropout: `kept` are the weights that it keeps, else 0. In units of what it
// keeps, which delta is in already: dK and dQ grow instead.
template <class T>
__device__ __forceinline__ void differentiate_scores(const std::uint32_t (&weights)[4],
                                                     const std::uint32_t (&kept)[4],
                                                     const float* dp, const float4& minus_delta,
                                                     std::uint32_t* ds) {
  const float minus[4] = {minus_delta.x, minus_delta.y, minus_delta.z, minus_delta.w};
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    float x[2], y[2];
    widen_word<T>(weights[j / 2], x);
    widen_word<T>(kept[j / 2], y);
    x[0] = __fmaf_rn(x[0], minus[j / 4 * 2], y[0] * dp[j]);
    x[1] = __fmaf_rn(x[1], minus[j / 4 * 2 + 1], y[1] * dp[j + 1]);
    ds[j / 2] = narrow_word<T>(x);
  }
}

// Values of the next block's scores that are known before its products.
struct BackwardAhead {
  std::uint32_t visible;  // bits
  std::uint32_t kept;
  float slope;  // taken off for each place
  float place;  // of the lane's first key, from the diagonal of its first query on
};

// A block of 64 queries by the 16 keys of a warp.
template <class C>
struct BackwardScores {
  using T = typename C::T;
  using S = BackwardShared<C>;
  static constexpr bool kLoadsMaps = C::kMapSlabs > 0;  // else there is no bias

  const BackwardFeatures& of;
  std::uint32_t item;
  int first_query;
  int warp;  // which 16 of the tile's keys
  int lane;

  // The next block's maps are number `n` of this CTA.
  __device__ __forceinline__ void look_ahead(std::uint32_t n, BackwardAhead& ahead) const {
    const AttentionProblem& p = of.problem;
    ahead.visible = 0;
    ahead.slope = ahead.place = 0;
    if (p.slopes.data != nullptr) {
      const IntSequence sequence = S::item_sequence(item);
      const int shift = p.bottom_right ? sequence.keys - sequence.queries : 0;
      ahead.slope = p.slopes.at(batch(), head(), 0.0f) * -of.added;
      ahead.place = static_cast<float>(first_key() + lane / 4 - query(0) - shift);
    }
    if constexpr (kLoadsMaps) {
      wait_for_maps(n);
      if (p.bias.defined() && of.bias.slab_keys == 0) {
        p.bias.dtype == DType::kFloat32 ? copy_bias<float>() : copy_bias<T>();
      }
    }
    if (p.mask.defined()) ahead.visible = visible();
  }

  // Half of what dropout wants: the bits of one of the two eights of keys.
  template <int kEight>
  __device__ __forceinline__ void draw(BackwardAhead& ahead) const {
    if (kEight == 0) ahead.kept = 0;
    if (of.problem.drop_below == 0) return;
    const std::uint32_t bits = drawn(kEight);
    ahead.kept = kEight == 0 ? bits >> 16 : __byte_perm(ahead.kept, bits, 0x7610);
  }

  // Products become scores, in units of `outer`; with softcap, `slopes` are their derivatives.
  __device__ __forceinline__ void finish_scores(const BackwardAhead& ahead, float (&s)[32],
                                                std::uint32_t (&slopes)[16]) const {
    const AttentionProblem& p = of.problem;
    if (C::kWeights && of.capped) {
      cap(s, slopes);
    } else if (of.inner != 1) {
#pragma unroll
      for (float& x : s) x *= of.inner;
    }
    if (p.slopes.data != nullptr) add_alibi(ahead, s);
    if constexpr (kLoadsMaps) {
      if (p.bias.defined()) {
        p.bias.dtype == DType::kFloat32 ? add_bias(s, float{}) : add_bias(s, T{});
      }
      release_maps();
    }
  }

  // Instead of all of the above, for a block that is not made.
  __device__ __forceinline__ void skip_maps(std::uint32_t n) const {
    wait_for_maps(n);
    release_maps();
  }

  // Sets probabilities that the mask hides to 0.
  __device__ __forceinline__ void hide(const BackwardAhead& ahead,
                                       std::uint32_t (&probabilities)[16]) const {
    if (!of.problem.mask.defined()) return;
    for_each_pair_of_bits(ahead.visible, lane / 4,
                          [&](int i, std::uint32_t ones) { probabilities[i] &= ones; });
  }

  // Passes to keep() the weights that multiply the gradients of probabilities: the probabilities
  // before dropout, times the slopes of a softcap.
  template <class Keep>
  __device__ __forceinline__ void weigh(const std::uint32_t (&probabilities)[16],
                                        std::uint32_t (&slopes)[16], Keep&& keep) const {
    if (of.capped) {
#pragma unroll
      for (int i = 0; i < 16; ++i) slopes[i] = multiply_words<T>(slopes[i], probabilities[i]);
      keep(slopes);
    } else {
      keep(probabilities);
    }
  }

  // For each pair keep(i, ones): ones are those bits that dropout keeps.
  template <class Keep>
  __device__ __forceinline__ void drop(const BackwardAhead& ahead, Keep&& keep) const {
    if (of.problem.drop_below != 0) {
      for_each_pair_of_bits(ahead.kept, KeptBits::bit_of(lane / 4), keep);
    }
  }

 private:
  __device__ __forceinline__ void wait_for_maps(std::uint32_t n) const {
    if (of.map_bytes != 0) S::template wait_full<1>(C::kMapsFull, n);
  }
  __device__ __forceinline__ void release_maps() const {
    if (of.map_bytes == 0) return;
    __syncwarp();
    if (lane == 0) mbarrier_arrive(S::barrier(C::kMapsEmpty));
  }

  __device__ __forceinline__ int query(int i) const { return first_query + 8 * i + lane % 4 * 2; }
  __device__ __forceinline__ int first_key() const {
    return S::tile_index(item) * kTileKeys + warp * 16;
  }
  __device__ __forceinline__ int batch() const { return S::item_word(item, WorkItem::kBatch); }
  __device__ __forceinline__ int head() const { return S::item_word(item, WorkItem::kHead); }

  // Where a map's slab lies in shared memory.
  static __device__ __forceinline__ std::uint32_t slab(const LoadedMap& map, int number) {
    return S::at(C::kMaps) + (map.place + number) * kMapSlabBytes;
  }

  // ---------------------------------------------------------------- bits

  // Calls body(pair, ones) for each of a fragment's 16 pairs, from the words of all lanes: `ones`
  // is all ones in the halves whose bit, number `bit` of each byte, is set.
  template <class Body>
  __device__ __forceinline__ void for_each_pair_of_bits(std::uint32_t word, int bit,
                                                        Body&& body) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t of_queries = __shfl_sync(kAllLanes, word, 4 * i + lane % 4);
      // The sign of each byte is the bit of this lane's key.
      const std::uint32_t signs = of_queries << (7 - bit);
      body(2 * i, repeat_signs<0x9988>(signs));
      body(2 * i + 1, repeat_signs<0xbbaa>(signs));
    }
  }

  // A bit for each of four bytes: whether it is not 0.
  static __device__ __forceinline__ std::uint32_t bits_of_bytes(std::uint32_t bytes) {
    const std::uint32_t signs = ((bytes & 0x7f7f7f7f) + 0x7f7f7f7f | bytes) & 0x80808080;
    return (signs >> 7) * 0x01020408 >> 24 & 0xf;
  }
  static __device__ __forceinline__ std::uint32_t bits_of_eight(std::uint32_t low,
                                                                std::uint32_t high) {
    return bits_of_bytes(low) | bits_of_bytes(high) << 4;
  }

  // A slab has the mask of all 128 keys: 16 bytes of a query for each warp.
  __device__ __forceinline__ std::uint32_t visible_in_shared() const {
    std::uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane / 4 * 8 + lane % 4 * 2 + i;
      const uint4 bytes = load_shared(swizzled<kSwizzleRow>(slab(of.mask, 0), row, warp));
      word |= bits_of_eight(bytes.x, bytes.y) << 8 * i;
      word |= bits_of_eight(bytes.z, bytes.w) << (16 + 8 * i);
    }
    return word;
  }

  __device__ __forceinline__ std::uint32_t visible() const {
    if constexpr (kLoadsMaps) {
      if (of.mask.slab_keys != 0) return visible_in_shared();
    }
    return visible_in_memory();
  }

  // The mask comes in aligned eights, which end where the keys do.
  __device__ __forceinline__ std::uint32_t visible_in_memory() const {
    const ScoreMap& map = of.problem.mask;
    const IntSequence sequence = S::item_sequence(item);
    const std::uint8_t* const base =
        static_cast<const std::uint8_t*>(map.data) + map.offset(batch(), head(), 0, 0);
    uint2 eights[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = query(lane / 4) + i % 2;
      const int key = first_key() + i / 2 * 8;
      const uint2* const from = reinterpret_cast<const uint2*>(base + row * map.row_stride + key);
      if (key < sequence.keys && row < sequence.queries) eights[i] = __ldg(from);
    }
    std::uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) word |= bits_of_eight(eights[i].x, eights[i].y) << 8 * i;
    return word;
  }

  // Copies a bias that TMA cannot load to where TMA would put it.
  template <class V>
  __device__ __forceinline__ void copy_bias() const {
    constexpr int kSize = sizeof(V);
    constexpr int kSlabKeys = kSwizzleRow / kSize;
    constexpr int kRowsAtOnce = 2;
    const ScoreMap& map = of.problem.bias;
    const IntSequence sequence = S::item_sequence(item);
    const int key = first_key() + lane % 16;
    const int column = (warp * 16 + lane % 16) % kSlabKeys;
    const std::uint32_t to = slab(of.bias, warp * 16 / kSlabKeys) + column * kSize % 16;
    const V* from = static_cast<const V*>(map.data) + map.offset(batch(), head(), first_query, key);
#pragma unroll 8
    for (int i = 0; i < kBlockQueries; i += kRowsAtOnce) {
      const int row = i + lane / 16;
      const bool exists = first_query + row < sequence.queries && key < sequence.keys;
      const V value = exists ? from[row * map.row_stride] : V{};
      store_shared_value(to + row * kSwizzleRow + (column * kSize / 16 ^ row % 8) * 16, value);
    }
    __syncwarp();
  }
  static __device__ __forceinline__ void store_shared_value(std::uint32_t to, float v) {
    store_shared_int(to, __float_as_int(v));
  }
  static __device__ __forceinline__ void store_shared_value(std::uint32_t to, T v) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(v.bits) : "memory");
  }

  // The dropout bits of eight keys for the lane's two queries, in the upper half of a word.
  __device__ __forceinline__ std::uint32_t drawn(int eight) const {
    const AttentionProblem& p = of.problem;
    const Dropout<float> dropout(p);
    const std::int64_t row = p.q_offsets ? head() * p.queries + S::item_sequence(item).q_begin
                                         : (batch() * p.heads + head()) * p.queries;
    const int key = first_key() + eight * 8;
    const std::uint64_t call = dropout.call(row + query(lane / 4), key);
    return KeptBits(p).bytes_of(dropout.bits(call), dropout.bits(call + dropout.calls_per_row()));
  }

  // ---------------------------------------------------------------- scores

  __device__ __forceinline__ void cap(float (&s)[32], std::uint32_t (&slopes)[16]) const {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      float slope[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float& x = s[i + n];
        x = tanh_approximate(x * of.inner);
        slope[n] = __fmaf_rn(-x, x, 1.0f);
      }
      slopes[i / 2] = narrow_word<T>(slope);
    }
  }

  // A slab for each consumer. Matrices of 8 queries and 8 keys, which the fragment wants the other
  // way round: both eights of keys of 16 queries at once.
  __device__ __forceinline__ void add_bias(float (&s)[32], T) const {
    const std::uint32_t from =
        swizzled_16x16_trans<kSwizzleRow>(slab(of.bias, warp / 4), 0, warp % 4 * 2, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t words[4];
      ldmatrix_x4_trans(words, from + i * 16 * kSwizzleRow);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        float bias[2];
        widen_word<T>(words[m], bias);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[8 * i + 2 * m + c];
          x = __fmaf_rn(x, of.unit, bias[c]);
        }
      }
    }
  }

  // A slab for each two warps.
  __device__ __forceinline__ void add_bias(float (&s)[32], float) const {
    const int row = lane % 4 * 2;
    const int column = warp % 2 * 16 + lane / 4;
    const std::uint32_t from =
        swizzled<kSwizzleRow>(slab(of.bias, warp / 2), row, column / 4) + column % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        // Eight keys on, and in the next row, whose number has one bit more.
        const std::uint32_t at = (from ^ half * 32 ^ c * 16) + c * kSwizzleRow;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& x = s[4 * i + 2 * half + c];
          x = __fmaf_rn(x, of.unit, __int_as_float(load_shared_int(at + i * kSwizzleGroup)));
        }
      }
    }
  }

  __device__ __forceinline__ void add_alibi(const BackwardAhead& ahead, float (&s)[32]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float place = ahead.place + 8.0f * half;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[4 * i + 2 * half + c];
          x = __fmaf_rn(ahead.slope, fabsf(place - static_cast<float>(8 * i + c)), x);
        }
      }
    }
  }
};

}  // namespace transformer_kernels::cuda
