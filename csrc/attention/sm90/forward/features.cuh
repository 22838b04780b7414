// SPDX-License-Identifier: MIT
// The steps from products to scores other than the scale, and dropout, on the fragment of one
// thread: a loop over all its scores for each feature in use, so that no score tests which features
// there are. HeadScores takes one score at a time.
//
// Scores are kept such that one factor, HopperForward::scale, remains for the exponential, whose
// multiply-add applies it at no cost; it also adds the part of ALiBi that all keys of a block
// share.
#pragma once

#include "attention/common/scores.cuh"
#include "attention/sm90/forward/tiles.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/sm90/accumulator.cuh"
#include "core/cuda/sm90/swizzle.cuh"

namespace transformer_kernels::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// 2^v by multiply-adds, from 2^-126 on: the fraction's power by a polynomial (relative error 1e-4),
// the whole part into the exponent.
__device__ __forceinline__ float exp2_polynomial(float v) {
  constexpr float kRound = 12582912;  // 1.5 * 2^23: what is added to it becomes whole
  v = fmaxf(v, -126.0f);
  const float rounded = v + kRound;
  const float f = v - (rounded - kRound);
  float power = __fmaf_rn(f, 0.05517167f, 0.24261113f);
  power = __fmaf_rn(f, power, 0.69326099f);
  power = __fmaf_rn(f, power, 0.99992807f);
  return __int_as_float((__float_as_int(rounded) << 23) + __float_as_int(power));
}

// s[4 i + 2 half + c] belongs to row lane / 4 + 8 half of the warp and key 8 i + 2 (lane % 4) + c
// of the block.
template <class C>
class ForwardScores {
  using T = typename C::Element;
  static constexpr int kKeys = C::kKeys;
  static constexpr int kSums = kKeys / 2;
  static constexpr int kScratchBytes = 512;  // of a warp

  template <class E>
  using Pair = std::conditional_t<sizeof(E) == 4, float2,
                                  std::conditional_t<sizeof(E) == 2, std::uint32_t, std::uint16_t>>;

 public:
  __device__ __forceinline__ ForwardScores(const HopperForward& p, const ForwardStorage<C>& storage,
                                           int group, AccumulatorThread own)
      : p_(p),
        maps_(storage.maps_of(group)),
        own_(own) {}

  // Whether the problem has one of these features.
  template <unsigned kFeatures>
  __device__ __forceinline__ bool has() const {
    if constexpr ((C::kFeatures & kFeatures) == 0) return false;
    if constexpr (C::kPlan.has_one_feature()) return true;
    return (p_.features & kFeatures) != 0;
  }

  __device__ __forceinline__ void begin(const GroupTile& at) {
    if constexpr ((C::kFeatures & kAlibi) == 0) return;
    slope_ = p_.problem.slopes.at(at.tile.batch, at.tile.head, 0.0f) * p_.added;
    shift_[0] = shift_[1] = 0;
  }

  // The amount that is added to a row's scores after p.outer.
  __device__ __forceinline__ float shift(int half) const { return shift_[half]; }

  // Where scores have it already.
  __device__ __forceinline__ void forget_shift() { shift_[0] = shift_[1] = 0; }

  // Whether no score is -inf but by its place.
  __device__ __forceinline__ bool is_bounded() const { return has<kSoftcap>() && !has<kMaps>(); }

  // A block that the warpgroup does not need.
  __device__ __forceinline__ void skip() {
    if (!loads_maps()) return;
    maps_.wait();
    release();
  }

  // Products become scores.
  __device__ __forceinline__ void apply(const GroupTile& at, int block, float (&s)[kSums]) {
    if (has<kSoftcap>()) {
#pragma unroll
      for (float& v : s) v = tanh_approximate(v * p_.inner);
    } else if (has<kOtherScale>()) {
#pragma unroll
      for (float& v : s) v *= p_.inner;
    }
    if (has<kAlibi>()) add_alibi(at, block, s);
    if (loads_maps()) maps_.wait();
    if (has<kBias>()) {
      p_.problem.bias.dtype == DType::kFloat32 ? add_bias<float>(at, block, s)
                                               : add_bias<T>(at, block, s);
    }
    if (has<kMask>()) hide_masked(at, block, s);
    if (loads_maps()) release();
  }

  // Elements that dropout does not keep become 0. Each lane draws for 8 keys of a row, as Philox
  // gives them, and ldmatrix hands them out as the fragment wants them.
  __device__ __forceinline__ void drop(const GroupTile& at, int block, float (&s)[kSums]) const {
    if (!has<kDropout>()) return;
    constexpr int kBatch = C::kGroups == 2 && kKeys % 64 == 0 ? 4 : 2;
    // The threshold, in the upper half of a word; any value of the lower half compares alike.
    const std::uint32_t dropped = (p_.problem.drop_below << 16) - 1;
    const Dropout<float> dropout(p_.problem);
    const std::uint32_t scratch =
        maps_.data() + C::kMapBytes - (4 - own_.warp) * kScratchBytes + own_.lane * 16;
    const std::int64_t row =
        p_.blocks.offsets == nullptr
            ? (at.tile.batch * p_.problem.heads + at.tile.head) * p_.problem.queries
            : at.tile.head * p_.problem.queries + at.tile.q_begin;
    const std::int64_t own_row = row + at.query + own_.warp * 16 + own_.lane % 16;
    // That of the first 16 keys; the next 16 are two calls further.
    const std::uint64_t call = dropout.call(own_row, block * kKeys + own_.lane / 16 * 8);
#pragma unroll
    for (int i = 0; i < kKeys / 16; i += kBatch) {
      PhiloxWords bits[kBatch];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) bits[n] = dropout.bits(call + 2 * (i + n));
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const std::uint32_t(&word)[4] = bits[n].word;
        __syncwarp();
        store_shared(scratch, make_uint4(word[0], word[1], word[2], word[3]));
        __syncwarp();
        std::uint32_t drawn[4];
        ldmatrix_x4(drawn, scratch);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          float* const pair = s + 8 * (i + n) + 2 * m;
          if (drawn[m] << 16 <= dropped) pair[0] = 0;
          if (drawn[m] <= dropped) pair[1] = 0;
        }
      }
    }
  }

 private:
  // Whether TMA does: where it cannot, the warps load for themselves.
  __device__ __forceinline__ bool loads_maps() const { return C::kLoadsMaps && p_.map_bytes != 0; }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (own_.lane == 0) maps_.release();
    maps_.advance();
  }

  // -slope |place|, place being how far the key stands behind the row's diagonal. In a block on one
  // side of the diagonal place has one sign, and its part of the row goes to shift_.
  __device__ __forceinline__ void add_alibi(const GroupTile& at, int block, float (&s)[kSums]) {
    const int first = block * kKeys;
    const int diagonal = at.query + at.shift;
    const float place = static_cast<float>(first + own_.col(0) - (diagonal + own_.row(0)));
    const bool before = first + kKeys - 1 <= diagonal;
    if (before || first >= diagonal + 63) {
      const float slope = before ? slope_ : -slope_;
#pragma unroll
      for (int n = 0; n < kSums; ++n) {
        s[n] = __fmaf_rn(slope, static_cast<float>(n / 4 * 8 + n % 2), s[n]);
      }
      shift_[0] = slope * p_.unit * place;
      shift_[1] = slope * p_.unit * (place - 8);
    } else {
#pragma unroll
      for (int n = 0; n < kSums; ++n) {
        const float own = place + static_cast<float>(n / 4 * 8 + n % 2 - n / 2 % 2 * 8);
        s[n] = __fmaf_rn(-slope_, fabsf(own), s[n]);
      }
      shift_[0] = shift_[1] = 0;
    }
  }

  // ------------------------------------------------------------ bias and mask

  template <class E>
  __device__ __forceinline__ void add_bias(const GroupTile& at, int block,
                                           float (&s)[kSums]) const {
    visit<E>(at, block, p_.problem.bias, p_.bias, s, [&](float* v, Pair<E> pair) {
      float bias[2];
      if constexpr (std::is_same_v<E, float>) {
        bias[0] = pair.x;
        bias[1] = pair.y;
      } else {
        widen_word<E>(pair, bias);
      }
      v[0] = __fmaf_rn(v[0], p_.unit, bias[0]);
      v[1] = __fmaf_rn(v[1], p_.unit, bias[1]);
    });
  }

  __device__ __forceinline__ void hide_masked(const GroupTile& at, int block,
                                              float (&s)[kSums]) const {
    visit<std::uint8_t>(at, block, p_.problem.mask, p_.mask, s, [](float* v, std::uint16_t pair) {
      if ((pair & 0xff) == 0) v[0] = -INFINITY;
      if (pair >> 8 == 0) v[1] = -INFINITY;
    });
  }

  // Calls use(v, pair) with each two scores and what the map holds for them; keys behind the last
  // and queries behind the last get anything.
  template <class E, class Use>
  __device__ __forceinline__ void visit(const GroupTile& at, int block, const ScoreMap& map,
                                        const LoadedMap& loaded, float (&s)[kSums],
                                        Use&& use) const {
    if (loaded.slab_keys == 0) {
      visit_global<E>(at, block, map, s, use);
    } else {
      visit_shared<E>(maps_.data() + loaded.place * kMapSlabBytes, s, use);
    }
  }

  // Where byte `column` of a row of the room lies: in a slab of 128 bytes, whose 16-byte pieces
  // are swizzled by the row. `row`: of the lane, with its own bytes swizzled already.
  static __device__ __forceinline__ std::uint32_t byte(std::uint32_t row, int column) {
    return (row ^ column % 128) + column / 128 * kMapSlabBytes;
  }

  template <class E, class Use>
  __device__ __forceinline__ void visit_shared(std::uint32_t room, float (&s)[kSums],
                                               Use&& use) const {
    constexpr int kBytes = sizeof(E);
    const std::uint32_t rows = room + own_.warp * 16 * 128;
    if constexpr (kBytes == 2) {
      // Matrices of 8 rows and 8 keys: two of each octet, those of two octets at once.
      const std::uint32_t row = swizzled_16x16<128>(rows, 0, 0, own_.lane);
#pragma unroll
      for (int i = 0; i < kKeys / 8; i += 2) {
        std::uint32_t pair[4];
        ldmatrix_x4(pair, byte(row, 16 * i));
#pragma unroll
        for (int m = 0; m < 4; ++m) use(s + 4 * i + 2 * m, pair[m]);
      }
    } else {
      const std::uint32_t row =
          rows + own_.lane / 4 * 128 + ((own_.lane % 4 * 2 * kBytes) ^ (own_.lane / 4 * 16));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kKeys / 8; ++i) {
          const std::uint32_t from = byte(row, 8 * i * kBytes) + half * 8 * 128;
          if constexpr (kBytes == 4) {
            use(s + 4 * i + 2 * half, load_shared_float2(from));
          } else {
            use(s + 4 * i + 2 * half, load_shared_u16(from));
          }
        }
      }
    }
  }

  static __device__ __forceinline__ float2 twice(float v) { return {v, v}; }
  static __device__ __forceinline__ std::uint32_t twice(T v) { return v.bits * 0x10001u; }
  static __device__ __forceinline__ std::uint16_t twice(std::uint8_t v) { return v * 0x101; }

  template <class E, class Use>
  __device__ __forceinline__ void visit_global(const GroupTile& at, int block, const ScoreMap& map,
                                               float (&s)[kSums], Use&& use) const {
    const ForwardTile& t = at.tile;
    const int key = block * kKeys + own_.col(0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = min(at.query + own_.row(half), t.queries - 1);
      const E* const row =
          static_cast<const E*>(map.data) + map.offset(t.batch, t.head, query, key);
      if (map.col_stride == 0) {
        const Pair<E> pair = twice(*row);
#pragma unroll
        for (int i = 0; i < kKeys / 8; ++i) use(s + 4 * i + 2 * half, pair);
      } else {
#pragma unroll
        for (int i = 0; i < kKeys / 8; ++i) {
          Pair<E> pair{};
          if (key + 8 * i < t.keys) pair = __ldg(reinterpret_cast<const Pair<E>*>(row) + 4 * i);
          use(s + 4 * i + 2 * half, pair);
        }
      }
    }
  }

  const HopperForward& p_;
  typename ForwardStorage<C>::Maps maps_;
  const AccumulatorThread own_;
  float slope_;  // in units of added
  float shift_[2];
};

// Stands in for features in the other plans.
struct NoFeatures {
  template <class... Arguments>
  __device__ __forceinline__ explicit NoFeatures(const Arguments&...) {}
};

#endif  // sm_90a

}  // namespace transformer_kernels::cuda
