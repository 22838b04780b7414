// SPDX-License-Identifier: MIT
// Portable vectors: 16 bytes as plain arrays, which compilers turn into SSE2 or NEON instructions.
#pragma once

#include "core/cpu/simd.h"
#include "core/math/convert.h"

namespace transformer_kernels::cpu::TFK_ISA {

// Kernels count on so many: compilers spill arrays sooner than vectors.
inline constexpr int kVectorRegisters = 8;

template <class A>
struct Vec {
  static constexpr int kLanes = 16 / sizeof(A);
  A lane[kLanes];

  TFK_INLINE static Vec of(A value) {
    return make([&](int) { return value; });
  }
  template <class Function>
  TFK_INLINE static Vec make(Function&& function) {
    Vec out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = function(i);
    return out;
  }
};

template <class A>
struct Mask {
  bool lane[Vec<A>::kLanes];

  template <class Function>
  TFK_INLINE static Mask make(Function&& function) {
    Mask out;
    for (int i = 0; i < Vec<A>::kLanes; ++i) out.lane[i] = function(i);
    return out;
  }
};

template <class A>
TFK_INLINE Vec<A> operator+(Vec<A> a, Vec<A> b) {
  return Vec<A>::make([&](int i) { return a.lane[i] + b.lane[i]; });
}
template <class A>
TFK_INLINE Vec<A> operator-(Vec<A> a, Vec<A> b) {
  return Vec<A>::make([&](int i) { return a.lane[i] - b.lane[i]; });
}
template <class A>
TFK_INLINE Vec<A> operator*(Vec<A> a, Vec<A> b) {
  return Vec<A>::make([&](int i) { return a.lane[i] * b.lane[i]; });
}
template <class A>
TFK_INLINE Vec<A> operator/(Vec<A> a, Vec<A> b) {
  return Vec<A>::make([&](int i) { return a.lane[i] / b.lane[i]; });
}
// Rounds twice: a fused operation is a function call where the hardware may lack it.
template <class A>
TFK_INLINE Vec<A> fma(Vec<A> a, Vec<A> b, Vec<A> c) {
  return a * b + c;
}
template <class A>
TFK_INLINE Vec<A> max(Vec<A> a, Vec<A> b) {
  return Vec<A>::make([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
template <class A>
TFK_INLINE Vec<A> min(Vec<A> a, Vec<A> b) {
  return Vec<A>::make([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
TFK_INLINE float magnitude(float a) { return __builtin_fabsf(a); }
TFK_INLINE double magnitude(double a) { return __builtin_fabs(a); }
template <class A>
TFK_INLINE Vec<A> abs(Vec<A> a) {
  return Vec<A>::make([&](int i) { return magnitude(a.lane[i]); });
}
template <class A>
TFK_INLINE A reduce_add(Vec<A> v) {
  A total = v.lane[0];
  for (int i = 1; i < Vec<A>::kLanes; ++i) total += v.lane[i];
  return total;
}
template <class A>
TFK_INLINE A reduce_max(Vec<A> v) {
  A largest = v.lane[0];
  for (int i = 1; i < Vec<A>::kLanes; ++i) largest = largest > v.lane[i] ? largest : v.lane[i];
  return largest;
}

template <class A>
TFK_INLINE Vec<A> swap_pairs(Vec<A> v) {
  return Vec<A>::make([&](int i) { return v.lane[i ^ 1]; });
}

template <class T>
TFK_INLINE Mask<accumulate_t<T>> first(First lanes) {
  return Mask<accumulate_t<T>>::make([&](int i) { return i < lanes.count; });
}
template <class A>
TFK_INLINE Mask<A> equal(Vec<A> a, Vec<A> b) {
  return Mask<A>::make([&](int i) { return a.lane[i] == b.lane[i]; });
}
template <class A>
TFK_INLINE Mask<A> is_negative(Vec<A> a) {
  return Mask<A>::make([&](int i) { return __builtin_signbit(a.lane[i]) != 0; });
}
template <class T>
TFK_INLINE Mask<accumulate_t<T>> nonzero(const std::uint8_t* bytes, All) {
  return Mask<accumulate_t<T>>::make([&](int i) { return bytes[i] != 0; });
}
template <class A>
TFK_INLINE Vec<A> select(Mask<A> mask, Vec<A> yes, Vec<A> no) {
  return Vec<A>::make([&](int i) { return mask.lane[i] ? yes.lane[i] : no.lane[i]; });
}

// Whole numbers n in [-127, 127] are kept as sums with this: their low bits are the biased exponent
// of 2^n.
inline constexpr float kBiasedZero = 0x1.8p23f + 127;

TFK_INLINE Vec<float> round_product(Vec<float> a, Vec<float> b) {
  return fma(a, b, Vec<float>::of(kBiasedZero));
}
TFK_INLINE Vec<float> whole(Vec<float> n) { return n - Vec<float>::of(kBiasedZero); }

// Below this exp is 0: times_power_of_two() flushes what is less than the smallest normal number.
inline constexpr float kExpLowest = -88.0f;

TFK_INLINE Vec<float> times_power_of_two(Vec<float> v, Vec<float> n) {
  return Vec<float>::make([&](int i) {
    const auto bits = __builtin_bit_cast(std::uint32_t, n.lane[i]);
    return v.lane[i] * __builtin_bit_cast(float, bits << 23);
  });
}

template <class T>
TFK_INLINE Vec<accumulate_t<T>> load(const T* p, All) {
  return Vec<accumulate_t<T>>::make([&](int i) { return widen(p[i]); });
}
template <class T>
TFK_INLINE void store(T* p, Vec<accumulate_t<T>> v, All) {
  for (int i = 0; i < v.kLanes; ++i) narrow(v.lane[i], p[i]);
}
template <class T>
TFK_INLINE Vec<accumulate_t<T>> load(const T* p, First lanes) {
  return load(Staged<T, Vec<accumulate_t<T>>::kLanes>::from(p, lanes).data, All{});
}
template <class T>
TFK_INLINE void store(T* p, Vec<accumulate_t<T>> v, First lanes) {
  Staged<T, Vec<accumulate_t<T>>::kLanes> staged;
  store(staged.data, v, All{});
  staged.copy_to(p, lanes);
}
template <class T>
TFK_INLINE Mask<accumulate_t<T>> nonzero(const std::uint8_t* bytes, First lanes) {
  return nonzero<T>(Staged<std::uint8_t, vec_t<T>::kLanes>::from(bytes, lanes).data, All{});
}

template <class T>
TFK_INLINE void stream(T* p, Vec<accumulate_t<T>> v) {
  store(p, v, All{});
}
TFK_INLINE void stream_fence() {}
TFK_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace transformer_kernels::cpu::TFK_ISA
