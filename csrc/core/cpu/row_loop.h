// SPDX-License-Identifier: MIT
// Loops over the columns of a row. A row kernel reads its row two or three times; the row stays in
// the first-level cache meanwhile, and the last pass prefetches the next row.
#pragma once

#include "core/cpu/simd.h"
#include "core/cpu/simd_group.h"
#include "core/rows.h"

namespace transformer_kernels::cpu::TFK_ISA {

template <class T>
T* row_of(const Rows& matrix, std::int64_t row) {
  return static_cast<T*>(matrix.data) + row * matrix.stride;
}

// Enough to hide the latency of an addition; arrays for vectors would only make the code long, and
// twice as many pairs would not fit the registers.
template <class T>
inline constexpr int kUnroll = kVectorRegisters < 16 || !InOrder<T> ? 2 : 4;

struct NoPrefetch {
  TFK_INLINE void operator()(std::int64_t, std::int64_t) const {}
};

// Fetches the cache lines of elements [begin, end) of another row.
template <class T>
struct PrefetchRow {
  const T* row;

  TFK_INLINE void operator()(std::int64_t begin, std::int64_t end) const {
    constexpr int kLineElements = 64 / sizeof(T);
    for (std::int64_t i = begin; i < end; i += kLineElements) prefetch(row + i);
  }
};

// Fetches the cache lines of elements [begin, end) of two other rows.
template <class T>
struct PrefetchPair {
  PrefetchRow<T> a;
  PrefetchRow<T> b;

  TFK_INLINE void operator()(std::int64_t begin, std::int64_t end) const {
    a(begin, end);
    b(begin, end);
  }
};

// Calls body(column, slot, lanes) for each vec_t<T> of [0, count): kSlots whole vectors at a time,
// with slots 0, 1, ... so that each can have an accumulator of its own; then single vectors and the
// rest of the row on slot 0.
template <class T, int kSlots = kUnroll<T>, class Body, class Prefetch = NoPrefetch>
TFK_INLINE void for_each_vector(std::int64_t count, Body&& body, Prefetch prefetch_block = {}) {
  constexpr int kLanes = vec_t<T>::kLanes;
  std::int64_t i = 0;
  for (; i + kSlots * kLanes <= count; i += kSlots * kLanes) {
    prefetch_block(i, i + kSlots * kLanes);
#pragma GCC unroll 8
    for (int slot = 0; slot < kSlots; ++slot) body(i + slot * kLanes, slot, All{});
  }
  for (; i + kLanes <= count; i += kLanes) body(i, 0, All{});
  if (i < count) body(i, 0, First{count - i});
}

// Calls body(column, lanes) for as many vectors at once as a store of T takes (simd_group.h), then
// for single ones and the rest: for loops of few operations an element that store T, without a sum.
template <class T, class Body, class Prefetch = NoPrefetch>
TFK_INLINE void for_each_store(std::int64_t count, Body&& body, Prefetch prefetch_block = {}) {
  constexpr auto kStored = stored_lanes<T>();
  if constexpr (__is_same(decltype(kStored), const All)) {
    for_each_vector<T>(
        count, [&](std::int64_t i, int, auto lanes) { body(i, lanes); }, prefetch_block);
  } else {
    constexpr int kLanes = vec_t<T>::kLanes;
    constexpr int kBlock = kUnroll<T> * kLanes;
    std::int64_t i = 0;
    for (; i + kBlock <= count; i += kBlock) {
      prefetch_block(i, i + kBlock);
#pragma GCC unroll 4
      for (int at = 0; at < kBlock; at += 2 * kLanes) body(i + at, kStored);
    }
    for (; i + 2 * kLanes <= count; i += 2 * kLanes) body(i, kStored);
    if (i + kLanes <= count) {
      body(i, All{});
      i += kLanes;
    }
    if (i < count) body(i, First{count - i});
  }
}

// Calls body(column, lanes) for groups of whole vectors (simd_group.h), then for single ones and
// the rest: for loops of many operations an element and without a sum.
template <class T, class Body>
TFK_INLINE void for_each_group(std::int64_t count, Body&& body) {
  constexpr int kLanes = vec_t<T>::kLanes;
  constexpr int kGroupLanes = GroupOf<T>::kLanes;
  std::int64_t i = 0;
  for (; i + kGroupLanes <= count; i += kGroupLanes) body(i, GroupOf<T>::lanes());
  if constexpr (kGroupLanes > kLanes) {
    for (; i + kLanes <= count; i += kLanes) body(i, All{});
  }
  if (i < count) body(i, First{count - i});
}

// Calls body(first column, columns) for each block of a row. Sums are formed block by block, 128
// terms to an accumulator: their rounding error then hardly grows with the length of the row.
template <class T, class Body>
TFK_INLINE void for_each_block(std::int64_t count, Body&& body) {
  constexpr std::int64_t kBlock = 128 * kUnroll<T> * vec_t<T>::kLanes;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    body(begin, count - begin < kBlock ? count - begin : kBlock);
  }
}

// One partial result a slot.
template <class T, int kSlots = kUnroll<T>>
struct Slots {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  V slot[kSlots];

  TFK_INLINE static Slots of(A value) {
    Slots slots;
    for (V& v : slots.slot) v = V::of(value);
    return slots;
  }
  TFK_INLINE V& operator[](int i) { return slot[i]; }

  TFK_INLINE A sum() const {
    V total = slot[0];
    for (int i = 1; i < kSlots; ++i) total = total + slot[i];
    return reduce_add(total);
  }
  TFK_INLINE A largest() const {
    V top = slot[0];
    for (int i = 1; i < kSlots; ++i) top = max(top, slot[i]);
    return reduce_max(top);
  }
};

// Stores of whole vectors through the caches, or past them where the output would only evict what
// is still needed. The rest of a row always takes the first way.
struct CachedStore {
  template <class T, class V, class Lanes>
  TFK_INLINE static void put(T* p, V v, Lanes lanes) {
    store(p, v, lanes);
  }
};
struct StreamingStore {
  template <class T>
  TFK_INLINE static void put(T* p, vec_t<T> v, All) {
    stream(p, v);
  }
  template <class T, class V, class Lanes>
  TFK_INLINE static void put(T* p, Two<V> v, Twice<Lanes>) {
    stream(p, v);
  }
  template <class T>
  TFK_INLINE static void put(T* p, vec_t<T> v, First lanes) {
    store(p, v, lanes);
  }
};

// Stores past the caches or through them, chosen at run time.
template <class T, class V, class Lanes>
TFK_INLINE void put(T* p, V v, Lanes lanes, bool past_caches) {
  if (past_caches) {
    StreamingStore::put(p, v, lanes);
  } else {
    store(p, v, lanes);
  }
}

// Whether every row starts where StreamingStore can write a vector.
template <class T>
TFK_INLINE bool can_stream(const void* data, std::int64_t row_stride) {
  constexpr int kLanes = vec_t<T>::kLanes;
  return reinterpret_cast<std::uintptr_t>(data) % (kLanes * sizeof(T)) == 0 &&
         row_stride % kLanes == 0;
}

}  // namespace transformer_kernels::cpu::TFK_ISA
