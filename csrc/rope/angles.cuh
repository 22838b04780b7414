// SPDX-License-Identifier: MIT
// Loads the cosines and sines of a thread's unit from the tables.
#pragma once

#include "core/cuda/pack.cuh"
#include "rope/position.h"

namespace transformer_kernels::cuda {

// kCount numbers in loads of up to 16 bytes.
template <class W, int kCount>
struct Numbers {
  static constexpr int kWords = kCount * static_cast<int>(sizeof(W)) / 4;
  struct alignas(kWords < 4 ? 4 * kWords : 16) Words {
    std::uint32_t at[kWords];
  };
  Words words;

  __device__ __forceinline__ explicit Numbers(const W* pointer)
      : words(*reinterpret_cast<const Words*>(pointer)) {}

  __device__ __forceinline__ void unpack(float* out) const {
    constexpr int kPerWord = 4 / sizeof(W);
#pragma unroll
    for (int i = 0; i < kWords; ++i) widen_word<W>(words.at[i], out + i * kPerWord);
  }
};

__device__ __forceinline__ bool is_inside(const AngleTables& t, std::int64_t row) {
  return row >= 0 && row < t.positions;
}

// The row of frequencies [first, first + count), where one row has them all; else -1.
__device__ __forceinline__ std::int64_t common_row(const AngleTables& t, const Positions& positions,
                                                   int first, int count) {
  const int axis = axis_of(t, first);
  const std::int64_t row = positions.of(axis);
  return axis == axis_of(t, first + count - 1) && is_inside(t, row) ? row : -1;
}

// One by one; NaN where the tables lack a position.
template <class W, int kCount, class A>
__device__ __forceinline__ void load_apart(const AngleTables& t, const Positions& positions,
                                           int first, A* cos, A* sin) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int frequency = first + k;
    const std::int64_t row = positions.of(axis_of(t, frequency));
    cos[k] = sin[k] = static_cast<A>(__longlong_as_double(0x7ff8000000000000));
    if (!is_inside(t, row)) continue;
    cos[k] = widen(static_cast<const W*>(t.cos.data)[row * t.cos.stride + frequency]);
    sin[k] = widen(static_cast<const W*>(t.sin.data)[row * t.sin.stride + frequency]);
  }
}

// The two packs of a head's row that a thread owns.
struct RopeUnit {
  int first;  // elements from the start of the row
  int second;
  bool has_second;
  bool rotates;
};

// The unit of number `index` of a head. In the halves style a rotated unit is two packs half of the
// rotated row apart. With neighbours its packs are as many packs apart as a row has units, so that
// neighbouring threads read neighbouring packs, or it is the two numbers of a pair.
template <int kSize, bool kNeighbours>
__device__ __forceinline__ RopeUnit unit_of(const RopeProblem& p, int rotated, int units,
                                            int index) {
  const auto rotary_dim = static_cast<int>(p.rotary_dim());
  if (index >= rotated) {
    const int first = rotary_dim + (index - rotated) * kSize;
    const int second = first + (units - rotated) * kSize;
    return {first, second, second < p.dim, false};
  }
  if constexpr (kNeighbours) {
    const int second = (index + rotated) * kSize;
    return {index * kSize, second, second < rotary_dim, true};
  } else if (kSize == 1 && p.angles.interleaved) {
    return {2 * index, 2 * index + 1, true, true};
  } else {
    return {index * kSize, index * kSize + rotary_dim / 2, true, true};
  }
}

// The angles of a unit: of each place of its packs in halves; of neighbours, of the pairs of the
// first pack, then of those of the second.
template <class A, int kSize>
struct UnitAngles {
  A cos[kSize];
  A sin[kSize];

  template <class W, bool kNeighbours>
  __device__ __forceinline__ void load(const AngleTables& t, const Positions& positions,
                                       const RopeUnit& unit, int index, bool table_packs) {
    constexpr int kCount = kNeighbours ? kSize / 2 : kSize;
    const int first = kNeighbours ? unit.first / 2 : index * kSize;
    // A unit of neighbours may lack the second pack: it reads the first one's angles twice.
    const int second = kNeighbours && unit.has_second ? unit.second / 2 : first;
    if constexpr (kSize > 1) {
      const std::int64_t row = common_row(t, positions, first, kCount);
      const std::int64_t other = kNeighbours ? common_row(t, positions, second, kCount) : row;
      if (table_packs && row >= 0 && other >= 0) {
        return load_packs<W, kNeighbours>(t, row * t.cos.stride + first, row * t.sin.stride + first,
                                          other * t.cos.stride + second,
                                          other * t.sin.stride + second);
      }
    }
    load_apart<W, kCount>(t, positions, first, cos, sin);
    if constexpr (kNeighbours) {
      load_apart<W, kCount>(t, positions, second, cos + kCount, sin + kCount);
    }
  }

  __device__ __forceinline__ void reverse() {
#pragma unroll
    for (A& s : sin) s = -s;
  }

  template <bool kNeighbours>
  __device__ __forceinline__ void rotate(A (&first)[kSize], A (&second)[kSize]) const {
    if constexpr (kNeighbours) {
#pragma unroll
      for (int k = 0; k < kSize / 2; ++k) {
        turn(first[2 * k], first[2 * k + 1], k);
        turn(second[2 * k], second[2 * k + 1], kSize / 2 + k);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) turn(first[k], second[k], k);
    }
  }

 private:
  // All loads leave before the first number is unpacked.
  template <class W, bool kNeighbours>
  __device__ __forceinline__ void load_packs(const AngleTables& t, std::int64_t cos_first,
                                             std::int64_t sin_first, std::int64_t cos_second,
                                             std::int64_t sin_second) {
    constexpr int kCount = kNeighbours ? kSize / 2 : kSize;
    const auto* const cosines = static_cast<const W*>(t.cos.data);
    const auto* const sines = static_cast<const W*>(t.sin.data);
    const Numbers<W, kCount> c(cosines + cos_first), s(sines + sin_first);
    if constexpr (kNeighbours) {
      const Numbers<W, kCount> c2(cosines + cos_second), s2(sines + sin_second);
      c2.unpack(cos + kCount);
      s2.unpack(sin + kCount);
    }
    c.unpack(cos);
    s.unpack(sin);
  }

  __device__ __forceinline__ void turn(A& a, A& b, int k) const {
    const A x = a;
    a = x * cos[k] - b * sin[k];
    b = b * cos[k] + x * sin[k];
  }
};

// Heads are numbered from those of q on.
template <class T>
__device__ __forceinline__ T* row_of(const RopeProblem& p, const Heads& q, const Heads& k,
                                     const Token& at, std::int64_t head) {
  const bool of_q = head < p.q_heads;
  T* const start = static_cast<T*>(of_q ? q.data : k.data);
  const std::int64_t row = of_q ? head : head - p.q_heads;
  return start + at.batch * (of_q ? q.batch : k.batch) + at.time * (of_q ? q.time : k.time) +
         row * (of_q ? q.head : k.head);
}

}  // namespace transformer_kernels::cuda
