// SPDX-License-Identifier: MIT
// The steps of qk_norm's passes on a row, one head of a token, that a group of lanes owns.
//
// A lane's unit is the unit of the rotation (angles.cuh): a lane normalises the packs that it
// rotates, so nothing but the sum of squares crosses lanes.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "core/cuda/launch.cuh"
#include "rope/angles.cuh"
#include "rope/qk_norm_plan.h"

namespace transformer_kernels::cuda {

// Sums over groups of `lanes` neighbouring lanes; every lane of the warp takes part. The sums do
// not wait for each other.
template <class A, int kCount>
__device__ __forceinline__ void sum_over(A (&values)[kCount], int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (A& value : values) value += __shfl_xor_sync(kAllLanes, value, offset);
  }
}

__device__ __forceinline__ float reciprocal_root(float value) { return rsqrtf(value); }
__device__ __forceinline__ double reciprocal_root(double value) { return rsqrt(value); }

// The numbers of a unit; 0 where it has no second pack.
template <class T, int kSize, class A = accumulate_t<T>>
struct UnitValues {
  A first[kSize];
  A second[kSize];

  __device__ __forceinline__ void store(T* row, const RopeUnit& unit) const {
    using P = Pack<T, kSize>;
    P::store(row + unit.first, P::pack(first));
    if (unit.has_second) P::store(row + unit.second, P::pack(second));
  }

  __device__ __forceinline__ A squares() const {
    A sum = 0;
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum += first[k] * first[k] + second[k] * second[k];
    return sum;
  }
};

// The packs of a unit as they lie in memory: in half of the registers that their numbers take.
template <class T, int kSize>
struct UnitPacks {
  using P = Pack<T, kSize>;
  typename P::Raw first{};
  typename P::Raw second{};

  __device__ __forceinline__ void load(const T* row, const RopeUnit& unit) {
    first = P::load(row + unit.first);
    if (unit.has_second) second = P::load(row + unit.second);
  }

  __device__ __forceinline__ UnitValues<T, kSize> values() const {
    UnitValues<T, kSize> v;
    P::unpack(first, v.first);
    P::unpack(second, v.second);
    return v;
  }

  // values() by other instructions, for packs that were unpacked before (core/cuda/pack.cuh).
  __device__ __forceinline__ UnitValues<T, kSize> values_again() const {
    UnitValues<T, kSize> v;
    P::unpack_again(first, v.first);
    P::unpack_again(second, v.second);
    return v;
  }
};

// The weights of a unit, of T or of the type of sums; 1 where there are none.
template <class T, int kSize, class A = accumulate_t<T>>
struct UnitWeights {
  A first[kSize];
  A second[kSize];

  __device__ __forceinline__ void load(const void* weight, bool is_wide, const RopeUnit& unit) {
    if (weight == nullptr) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) first[k] = second[k] = 1;
    } else if (is_wide) {
      load_of(static_cast<const A*>(weight), unit);
    } else {
      load_of(static_cast<const T*>(weight), unit);
    }
  }

 private:
  template <class W>
  __device__ __forceinline__ void load_of(const W* weight, const RopeUnit& unit) {
    const int second_at = unit.has_second ? unit.second : unit.first;
    if constexpr (kSize == 1) {
      first[0] = widen(weight[unit.first]);
      second[0] = widen(weight[second_at]);
    } else {
      Numbers<W, kSize>(weight + unit.first).unpack(first);
      Numbers<W, kSize>(weight + second_at).unpack(second);
    }
  }
};

// The angles of a token's units; none without tables.
template <class T, int kSize, bool kNeighbours>
class RowAngles {
 public:
  __device__ __forceinline__ RowAngles(const RopeProblem& problem, const Token& at, bool packs)
      : problem_(problem),
        packs_(packs) {
    if (problem.angles.frequencies > 0) positions_ = positions_of(problem.angles, at);
  }

  __device__ __forceinline__ bool rotates(const RopeUnit& unit) const {
    return unit.rotates && positions_.rotates;
  }

  __device__ __forceinline__ void load(const RopeUnit& unit, int index,
                                       UnitAngles<accumulate_t<T>, kSize>& angles) const {
    const AngleTables& tables = problem_.angles;
    if (tables.dtype == problem_.dtype) {
      angles.template load<T, kNeighbours>(tables, positions_, unit, index, packs_);
    } else {
      angles.template load<accumulate_t<T>, kNeighbours>(tables, positions_, unit, index, packs_);
    }
    if (problem_.inverse) angles.reverse();
  }

 private:
  const RopeProblem& problem_;
  bool packs_;
  Positions positions_{};
};

template <class T>
__device__ __forceinline__ T* head_row(const Heads& heads, const Token& at, std::int64_t head) {
  return static_cast<T*>(heads.data) + at.batch * heads.batch + at.time * heads.time +
         head * heads.head;
}

// Tokens are numbered in 32 bits: a division of 64 would be a call, and bring spills.
__device__ __forceinline__ Token token_at(const RopeProblem& p, unsigned token) {
  const auto time = static_cast<unsigned>(p.time);
  return {token / time, token % time};
}

// Every step-th token from one on.
struct TokenWalk {
  Token at;
  Token step;

  __device__ __forceinline__ TokenWalk(const RopeProblem& p, unsigned first, unsigned stride)
      : at(token_at(p, first)),
        step(token_at(p, stride)) {}

  __device__ __forceinline__ void advance(const RopeProblem& p) {
    at.batch += step.batch;
    at.time += step.time;
    if (at.time < p.time) return;
    at.time -= p.time;
    ++at.batch;
  }
};

}  // namespace transformer_kernels::cuda
