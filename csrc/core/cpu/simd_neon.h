// SPDX-License-Identifier: MIT
// NEON of AArch64 (ARMv8.0 and later): 16-byte vectors, 32 registers of them.
#pragma once

#include <arm_neon.h>

#include "core/cpu/simd.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr int kVectorRegisters = 32;

template <>
struct Vec<float> {
  static constexpr int kLanes = 4;
  float32x4_t v;
  TFK_INLINE static Vec of(float value) { return {vdupq_n_f32(value)}; }
};

template <>
struct Vec<double> {
  static constexpr int kLanes = 2;
  float64x2_t v;
  TFK_INLINE static Vec of(double value) { return {vdupq_n_f64(value)}; }
};

// All bits of a lane are set, or none.
template <>
struct Mask<float> {
  uint32x4_t v;
};
template <>
struct Mask<double> {
  uint64x2_t v;
};

using VecF = Vec<float>;
using VecD = Vec<double>;

TFK_INLINE VecF operator+(VecF a, VecF b) { return {vaddq_f32(a.v, b.v)}; }
TFK_INLINE VecD operator+(VecD a, VecD b) { return {vaddq_f64(a.v, b.v)}; }
TFK_INLINE VecF operator-(VecF a, VecF b) { return {vsubq_f32(a.v, b.v)}; }
TFK_INLINE VecD operator-(VecD a, VecD b) { return {vsubq_f64(a.v, b.v)}; }
TFK_INLINE VecF operator*(VecF a, VecF b) { return {vmulq_f32(a.v, b.v)}; }
TFK_INLINE VecD operator*(VecD a, VecD b) { return {vmulq_f64(a.v, b.v)}; }
TFK_INLINE VecF operator/(VecF a, VecF b) { return {vdivq_f32(a.v, b.v)}; }
TFK_INLINE VecD operator/(VecD a, VecD b) { return {vdivq_f64(a.v, b.v)}; }
TFK_INLINE VecF fma(VecF a, VecF b, VecF c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
TFK_INLINE VecD fma(VecD a, VecD b, VecD c) { return {vfmaq_f64(c.v, a.v, b.v)}; }
TFK_INLINE VecF abs(VecF a) { return {vabsq_f32(a.v)}; }
TFK_INLINE VecD abs(VecD a) { return {vabsq_f64(a.v)}; }

TFK_INLINE Mask<float> equal(VecF a, VecF b) { return {vceqq_f32(a.v, b.v)}; }
TFK_INLINE Mask<double> equal(VecD a, VecD b) { return {vceqq_f64(a.v, b.v)}; }
TFK_INLINE Mask<float> is_negative(VecF a) { return {vcltzq_s32(vreinterpretq_s32_f32(a.v))}; }
TFK_INLINE Mask<double> is_negative(VecD a) { return {vcltzq_s64(vreinterpretq_s64_f64(a.v))}; }
TFK_INLINE VecF select(Mask<float> mask, VecF yes, VecF no) {
  return {vbslq_f32(mask.v, yes.v, no.v)};
}
TFK_INLINE VecD select(Mask<double> mask, VecD yes, VecD no) {
  return {vbslq_f64(mask.v, yes.v, no.v)};
}

// The instructions of that name return NaN where either is NaN; here it is b that is returned.
TFK_INLINE VecF max(VecF a, VecF b) { return select(Mask<float>{vcgtq_f32(a.v, b.v)}, a, b); }
TFK_INLINE VecD max(VecD a, VecD b) { return select(Mask<double>{vcgtq_f64(a.v, b.v)}, a, b); }
TFK_INLINE VecF min(VecF a, VecF b) { return select(Mask<float>{vcltq_f32(a.v, b.v)}, a, b); }
TFK_INLINE VecD min(VecD a, VecD b) { return select(Mask<double>{vcltq_f64(a.v, b.v)}, a, b); }

TFK_INLINE float reduce_add(VecF a) { return vaddvq_f32(a.v); }
TFK_INLINE double reduce_add(VecD a) { return vaddvq_f64(a.v); }
TFK_INLINE float reduce_max(VecF a) { return vmaxvq_f32(a.v); }
TFK_INLINE double reduce_max(VecD a) { return vmaxvq_f64(a.v); }

TFK_INLINE VecF swap_pairs(VecF a) { return {vrev64q_f32(a.v)}; }
TFK_INLINE VecD swap_pairs(VecD a) { return {vextq_f64(a.v, a.v, 1)}; }

template <class T>
TFK_INLINE Mask<accumulate_t<T>> first(First lanes) {
  if constexpr (sizeof(accumulate_t<T>) == sizeof(float)) {
    const std::uint32_t index[] = {0, 1, 2, 3};
    return {vcltq_u32(vld1q_u32(index), vdupq_n_u32(static_cast<std::uint32_t>(lanes.count)))};
  } else {
    const std::uint64_t index[] = {0, 1};
    return {vcltq_u64(vld1q_u64(index), vdupq_n_u64(static_cast<std::uint64_t>(lanes.count)))};
  }
}

// Four bytes, each in a lane of its own.
TFK_INLINE uint32x4_t four_bytes(const void* p) {
  std::uint32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  const uint8x8_t bytes = vcreate_u8(four);
  return vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
}
template <class T>
TFK_INLINE Mask<accumulate_t<T>> nonzero(const std::uint8_t* bytes, All) {
  if constexpr (sizeof(accumulate_t<T>) == sizeof(float)) {
    const uint32x4_t wide = four_bytes(bytes);
    return {vtstq_u32(wide, wide)};
  } else {
    const uint64x2_t wide = vcombine_u64(vcreate_u64(bytes[0]), vcreate_u64(bytes[1]));
    return {vtstq_u64(wide, wide)};
  }
}
template <class T>
TFK_INLINE Mask<accumulate_t<T>> nonzero(const std::uint8_t* bytes, First lanes) {
  return nonzero<T>(Staged<std::uint8_t, vec_t<T>::kLanes>::from(bytes, lanes).data, All{});
}

// Whole numbers n in [-127, 127] are kept as sums with this: their low bits are the biased exponent
// of 2^n.
inline constexpr float kBiasedZero = 0x1.8p23f + 127;

TFK_INLINE VecF round_product(VecF a, VecF b) { return fma(a, b, VecF::of(kBiasedZero)); }
TFK_INLINE VecF whole(VecF n) { return n - VecF::of(kBiasedZero); }

// Below this exp is 0: times_power_of_two() flushes what is less than the smallest normal number.
inline constexpr float kExpLowest = -88.0f;

TFK_INLINE VecF times_power_of_two(VecF a, VecF n) {
  return {vmulq_f32(a.v, vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(n.v), 23)))};
}

TFK_INLINE uint16x4_t load_halves(const void* p) {
  std::uint64_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return vcreate_u16(bits);
}
TFK_INLINE void store_halves(void* p, uint16x4_t a) {
  const std::uint64_t bits = vget_lane_u64(vreinterpret_u64_u16(a), 0);
  __builtin_memcpy(p, &bits, sizeof(bits));
}

TFK_INLINE VecF load(const float* p, All) { return {vld1q_f32(p)}; }
TFK_INLINE VecD load(const double* p, All) { return {vld1q_f64(p)}; }
TFK_INLINE VecF load(const Half* p, All) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(load_halves(p)))};
}
TFK_INLINE VecF load(const BFloat16* p, All) {
  return {vreinterpretq_f32_u32(vshll_n_u16(load_halves(p), 16))};
}

// The upper half of each sum is rounded: half of its last bit is added, or just less where that bit
// is 0, so that ties go to even. NaN may become anything by it, and is made again.
TFK_INLINE uint16x4_t to_bfloat16(VecF a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a.v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(a.v, a.v), rounded, quiet), 16);
}

TFK_INLINE void store(float* p, VecF a, All) { vst1q_f32(p, a.v); }
TFK_INLINE void store(double* p, VecD a, All) { vst1q_f64(p, a.v); }
TFK_INLINE void store(Half* p, VecF a, All) {
  store_halves(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v)));
}
TFK_INLINE void store(BFloat16* p, VecF a, All) { store_halves(p, to_bfloat16(a)); }

template <class T>
TFK_INLINE Vec<accumulate_t<T>> load(const T* p, First lanes) {
  return load(Staged<T, Vec<accumulate_t<T>>::kLanes>::from(p, lanes).data, All{});
}
template <class T>
TFK_INLINE void store(T* p, Vec<accumulate_t<T>> a, First lanes) {
  Staged<T, Vec<accumulate_t<T>>::kLanes> staged;
  store(staged.data, a, All{});
  staged.copy_to(p, lanes);
}

// Stores past the caches are a hint of pairs of registers here, which compilers do not offer.
template <class T>
TFK_INLINE void stream(T* p, Vec<accumulate_t<T>> a) {
  store(p, a, All{});
}
TFK_INLINE void stream_fence() {}
TFK_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

TFK_INLINE void transpose(VecD (&rows)[2]) {
  const float64x2_t first_column = vzip1q_f64(rows[0].v, rows[1].v);
  rows[1] = {vzip2q_f64(rows[0].v, rows[1].v)};
  rows[0] = {first_column};
}
// Exchanges what lies off the diagonal in blocks of 1 and 2 rows and columns.
TFK_INLINE void transpose(VecF (&rows)[4]) {
  const float64x2_t ones[] = {vreinterpretq_f64_f32(vtrn1q_f32(rows[0].v, rows[1].v)),
                              vreinterpretq_f64_f32(vtrn2q_f32(rows[0].v, rows[1].v)),
                              vreinterpretq_f64_f32(vtrn1q_f32(rows[2].v, rows[3].v)),
                              vreinterpretq_f64_f32(vtrn2q_f32(rows[2].v, rows[3].v))};
  rows[0] = {vreinterpretq_f32_f64(vzip1q_f64(ones[0], ones[2]))};
  rows[1] = {vreinterpretq_f32_f64(vzip1q_f64(ones[1], ones[3]))};
  rows[2] = {vreinterpretq_f32_f64(vzip2q_f64(ones[0], ones[2]))};
  rows[3] = {vreinterpretq_f32_f64(vzip2q_f64(ones[1], ones[3]))};
}

}  // namespace transformer_kernels::cpu::TFK_ISA
