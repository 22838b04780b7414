// SPDX-License-Identifier: MIT
// The largest of a token's numbers, in a warp. A number becomes an unsigned key of the same order,
// 0 being none: a warp finds the largest key in one instruction, and a ballot the lowest lane that
// has it, which has the lowest column.
#pragma once

#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

template <class V>
struct KeyOf {
  using Type = std::uint32_t;
};
template <>
struct KeyOf<double> {
  using Type = std::uint64_t;
};
template <class V>
using key_t = typename KeyOf<V>::Type;

// Both zeros have one key, and NaN has the largest.
__device__ __forceinline__ std::uint32_t key_of(float v) {
  const std::uint32_t bits = __float_as_uint(v + 0.0f);
  const std::uint32_t flip = static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31);
  return v != v ? 0xffffffffu : bits ^ (flip | 0x80000000u);
}
__device__ __forceinline__ std::uint64_t key_of(double v) {
  const auto bits = static_cast<std::uint64_t>(__double_as_longlong(v + 0.0));
  const auto flip = static_cast<std::uint64_t>(static_cast<std::int64_t>(bits) >> 63);
  return v != v ? ~std::uint64_t{0} : bits ^ (flip | std::uint64_t{1} << 63);
}
__device__ __forceinline__ float number_of(std::uint32_t key) {
  return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}
__device__ __forceinline__ double number_of(std::uint64_t key) {
  return __longlong_as_double(
      static_cast<std::int64_t>(key >> 63 ? key ^ std::uint64_t{1} << 63 : ~key));
}

__device__ __forceinline__ std::uint32_t largest_key(std::uint32_t key) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAllLanes, key);
#else
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    key = max(key, __shfl_xor_sync(kAllLanes, key, offset));
  }
  return key;
#endif
}
__device__ __forceinline__ std::uint64_t largest_key(std::uint64_t key) {
  const auto high = static_cast<std::uint32_t>(key >> 32);
  const std::uint32_t top = largest_key(high);
  const std::uint32_t low = largest_key(high == top ? static_cast<std::uint32_t>(key) : 0u);
  return std::uint64_t{top} << 32 | low;
}

__device__ __forceinline__ int lowest_lane(bool is_one) {
  return __ffs(static_cast<int>(__ballot_sync(kAllLanes, is_one))) - 1;
}

// Four keys in descending order, and the columns that they came from, two bits each.
template <class Key>
struct SortedQuad {
  Key key[4];
  std::uint32_t order;

  __device__ __forceinline__ void sort() {
    std::uint32_t from[4] = {0, 1, 2, 3};
    const auto put_first = [&](int a, int b, bool swaps) {
      const Key high = swaps ? key[b] : key[a];
      const Key low = swaps ? key[a] : key[b];
      const std::uint32_t first = swaps ? from[b] : from[a];
      from[b] = swaps ? from[a] : from[b];
      from[a] = first;
      key[a] = high;
      key[b] = low;
    };
    put_first(0, 1, key[1] > key[0]);
    put_first(2, 3, key[3] > key[2]);
    put_first(0, 2, key[2] > key[0]);
    put_first(1, 3, key[3] > key[1]);
    // Only here may equal keys have their columns in the wrong order.
    put_first(1, 2, key[2] > key[1] || (key[2] == key[1] && from[2] < from[1]));
    order = from[0] | from[1] << 2 | from[2] << 4 | from[3] << 6;
  }

  __device__ __forceinline__ void pop(bool pops) {
    key[0] = pops ? key[1] : key[0];
    key[1] = pops ? key[2] : key[1];
    key[2] = pops ? key[3] : key[2];
    key[3] = pops ? Key{0} : key[3];
    order = pops ? order >> 2 : order;
  }
};

// One of the chosen: lane k has the k-th.
template <class V>
struct Choice {
  key_t<V> key = 0;
  int col = 0;
};

// The keys of one piece of a token.
template <class V, int kQuads>
struct Candidates {
  using Key = key_t<V>;

  SortedQuad<Key> quad[kQuads];

  __device__ __forceinline__ Key head() const {
    Key head = quad[0].key[0];
#pragma unroll
    for (int q = 1; q < kQuads; ++q) head = quad[q].key[0] > head ? quad[q].key[0] : head;
    return head;
  }

  // Takes the first key that equals `key`, where `pops`; returns its column among the lane's.
  __device__ __forceinline__ int take(Key key, bool pops) {
    int col = 0;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const bool here = pops && quad[q].key[0] == key;
      col = here ? 4 * q + static_cast<int>(quad[q].order & 3) : col;
      quad[q].pop(here);
      pops = pops && !here;
    }
    return col;
  }

  // The `count` largest of these and of those chosen before, which had lower columns.
  __device__ __forceinline__ Choice<V> choose(int count, int first_col, Choice<V> before) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    Choice<V> own;
    for (int k = 0; k < count; ++k) {
      const Key head = this->head();
      const Key top = largest_key(before.key > head ? before.key : head);
      int winner = lowest_lane(before.key == top);
      const bool is_new = winner < 0;
      if (is_new) winner = lowest_lane(head == top);
      const bool wins = lane == winner;
      int col = before.col;
      if (is_new) {
        col = first_col + take(top, wins);
      } else if (wins) {
        before.key = 0;
      }
      col = __shfl_sync(kAllLanes, col, winner);
      if (lane == k) own = {top, col};
    }
    return own;
  }

  // The `count` largest of these.
  __device__ __forceinline__ Choice<V> choose(int count, int first_col) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    Choice<V> own;
    for (int k = 0; k < count; ++k) {
      const Key head = this->head();
      const Key top = largest_key(head);
      const int winner = lowest_lane(head == top);
      const int col = first_col + take(top, lane == winner);
      const int of_winner = __shfl_sync(kAllLanes, col, winner);
      if (lane == k) own = {top, of_winner};
    }
    return own;
  }
};

}  // namespace transformer_kernels::cuda
