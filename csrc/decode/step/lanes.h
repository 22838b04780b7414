// SPDX-License-Identifier: MIT
// A number for each of the 16 rows of a tile: Floats of vectors of float, and Dot, which sums
// products of unsigned bytes of a tile with signed whole numbers of 16 or 8 bits. For sources that
// are compiled once per instruction set.
//
// With VNNI a number of 16 bits is 256 times a signed byte plus another: each has an instruction of
// its own on the loaded weights. Elsewhere the bytes of weights become numbers of 16 bits, even and
// odd terms apart, as pairs of products of bytes would overflow; numbers of 8 bits gain nothing.
#pragma once

#include "core/cpu/simd.h"
#include "core/math/convert.h"
#include "decode/step/tiles.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr int kLanes = Vec<float>::kLanes;
inline constexpr int kVectors = 16 / kLanes;

struct Floats {
  Vec<float> v[kVectors];

  template <class Make>
  TFK_INLINE static Floats make(Make&& make) {
    Floats out;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) out.v[i] = make(i);
    return out;
  }
  TFK_INLINE static Floats of(float x) {
    return make([&](int) { return Vec<float>::of(x); });
  }
  TFK_INLINE static Floats load(const float* p) {
    return make([&](int i) { return TFK_ISA::load(p + i * kLanes, All{}); });
  }
  TFK_INLINE static Floats load(const Half* p) {
    return make([&](int i) { return TFK_ISA::load(p + i * kLanes, All{}); });
  }
  TFK_INLINE void store_to(float* p) const {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) store(p + i * kLanes, v[i], All{});
  }
};

TFK_INLINE Floats operator+(Floats a, Floats b) {
  return Floats::make([&](int i) { return a.v[i] + b.v[i]; });
}
TFK_INLINE Floats operator*(Floats a, Vec<float> b) {
  return Floats::make([&](int i) { return a.v[i] * b; });
}
TFK_INLINE Floats fma(Floats a, Vec<float> b, Floats c) {
  return Floats::make([&](int i) { return fma(a.v[i], b, c.v[i]); });
}
TFK_INLINE Floats fma(Floats a, Floats b, Floats c) {
  return Floats::make([&](int i) { return fma(a.v[i], b.v[i], c.v[i]); });
}

// Two neighbouring terms.
struct TermPair {
  Floats first;
  Floats second;
};

// 16 pairs of bfloat16.
#if TFK_ISA_LEVEL >= 2
TFK_INLINE TermPair load_pairs(const std::byte* p) {
  const __m512i pairs = _mm512_loadu_si512(p);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {{{{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))}}},
          {{{_mm512_castsi512_ps(_mm512_and_si512(pairs, upper))}}}};
}
#elif TFK_ISA_LEVEL == 1
TFK_INLINE TermPair load_pairs(const std::byte* p) {
  TermPair out;
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  for (int i = 0; i < kVectors; ++i) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + i);
    out.first.v[i] = {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))};
    out.second.v[i] = {_mm256_castsi256_ps(_mm256_and_si256(pairs, upper))};
  }
  return out;
}
#else
TFK_INLINE TermPair load_pairs(const std::byte* p) {
  const auto* const pairs = reinterpret_cast<const BFloat16*>(p);
  float first[16];
  float second[16];
  for (int i = 0; i < 16; ++i) {
    first[i] = widen(pairs[2 * i]);
    second[i] = widen(pairs[2 * i + 1]);
  }
  return {Floats::load(first), Floats::load(second)};
}
#endif

#if TFK_ISA_LEVEL >= 3

inline constexpr bool kSplitsCodes = true;

// 64 unsigned bytes: 4 terms of each row.
struct Line {
  __m512i bytes;

  TFK_INLINE static Line load(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
  TFK_INLINE Line low() const { return {_mm512_and_si512(bytes, _mm512_set1_epi8(15))}; }
  TFK_INLINE Line high() const { return Line{_mm512_srli_epi16(bytes, 4)}.low(); }
};

// A row of codes: their low bytes, and then the high ones.
struct Codes {
  const std::int8_t* low;
  const std::int8_t* high;

  TFK_INLINE static Codes at(const std::byte* codes, std::int64_t stride) {
    const auto* const low = reinterpret_cast<const std::int8_t*>(codes);
    return {low, low + stride};
  }
  TFK_INLINE static __m512i four(const std::int8_t* p) {
    std::int32_t word;
    __builtin_memcpy(&word, p, sizeof(word));
    return _mm512_set1_epi32(word);
  }
};

template <bool kWide>
struct Dot {
  __m512i low;
  __m512i high;

  TFK_INLINE static Dot of(std::int32_t start) {
    return {_mm512_set1_epi32(start), _mm512_setzero_si512()};
  }
  TFK_INLINE void add(Line w, const Codes& a, std::int64_t term) {
    low = _mm512_dpbusd_epi32(low, w.bytes, Codes::four(a.low + term));
    if constexpr (kWide) high = _mm512_dpbusd_epi32(high, w.bytes, Codes::four(a.high + term));
  }
  TFK_INLINE Floats sum() const {
    const __m512i all = kWide ? _mm512_add_epi32(low, _mm512_slli_epi32(high, 8)) : low;
    return {{{_mm512_cvtepi32_ps(all)}}};
  }
};

TFK_INLINE void store_code(std::byte* codes, std::int64_t stride, std::int64_t term, int code,
                           bool wide) {
  const int high = wide ? (code + 128) >> 8 : 0;
  codes[term] = static_cast<std::byte>(code - high * 256);
  codes[stride + term] = static_cast<std::byte>(high);
}

#else

inline constexpr bool kSplitsCodes = false;

// A row of codes: numbers of 16 bits, each four of them in the order 0, 2, 1, 3.
struct Codes {
  const std::int16_t* number;

  TFK_INLINE static Codes at(const std::byte* codes, std::int64_t) {
    return {reinterpret_cast<const std::int16_t*>(codes)};
  }
};

TFK_INLINE void store_code(std::byte* codes, std::int64_t, std::int64_t term, int code, bool) {
  constexpr int kPlace[] = {0, 2, 1, 3};
  reinterpret_cast<std::int16_t*>(codes)[term / 4 * 4 + kPlace[term % 4]] =
      static_cast<std::int16_t>(code);
}

#if TFK_ISA_LEVEL >= 1

// The instructions of one vector.
#if TFK_ISA_LEVEL == 2
struct WordLanes {
  __m512i v;

  TFK_INLINE static WordLanes load(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
  TFK_INLINE static WordLanes of(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
  TFK_INLINE WordLanes operator&(WordLanes b) const { return {_mm512_and_si512(v, b.v)}; }
  TFK_INLINE WordLanes shifted(int bits) const { return {_mm512_srli_epi16(v, bits)}; }
  TFK_INLINE WordLanes plus_products(WordLanes a, WordLanes b) const {
    return {_mm512_add_epi32(v, _mm512_madd_epi16(a.v, b.v))};
  }
  TFK_INLINE Vec<float> floats() const { return {_mm512_cvtepi32_ps(v)}; }
};
#else
struct WordLanes {
  __m256i v;

  TFK_INLINE static WordLanes load(const std::byte* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  TFK_INLINE static WordLanes of(std::int32_t x) { return {_mm256_set1_epi32(x)}; }
  TFK_INLINE WordLanes operator&(WordLanes b) const { return {_mm256_and_si256(v, b.v)}; }
  TFK_INLINE WordLanes shifted(int bits) const { return {_mm256_srli_epi16(v, bits)}; }
  TFK_INLINE WordLanes plus_products(WordLanes a, WordLanes b) const {
    return {_mm256_add_epi32(v, _mm256_madd_epi16(a.v, b.v))};
  }
  TFK_INLINE Vec<float> floats() const { return {_mm256_cvtepi32_ps(v)}; }
};
#endif

struct Line {
  WordLanes part[kVectors];

  TFK_INLINE static Line load(const std::byte* p) {
    Line line;
    for (int i = 0; i < kVectors; ++i) line.part[i] = WordLanes::load(p + i * 4 * kLanes);
    return line;
  }
  TFK_INLINE Line low() const {
    Line line;
    for (int i = 0; i < kVectors; ++i) line.part[i] = part[i] & WordLanes::of(0x0f0f0f0f);
    return line;
  }
  TFK_INLINE Line high() const {
    Line line;
    for (int i = 0; i < kVectors; ++i) line.part[i] = part[i].shifted(4);
    return line.low();
  }
};

template <bool kWide>
struct Dot {
  WordLanes part[kVectors];

  TFK_INLINE static Dot of(std::int32_t start) {
    Dot dot;
    for (int i = 0; i < kVectors; ++i) dot.part[i] = WordLanes::of(start);
    return dot;
  }
  TFK_INLINE void add(const Line& w, const Codes& a, std::int64_t term) {
    std::int32_t even;
    std::int32_t odd;
    __builtin_memcpy(&even, a.number + term, sizeof(even));
    __builtin_memcpy(&odd, a.number + term + 2, sizeof(odd));
    for (int i = 0; i < kVectors; ++i) {
      part[i] = part[i]
                    .plus_products(w.part[i] & WordLanes::of(0x00ff00ff), WordLanes::of(even))
                    .plus_products(w.part[i].shifted(8), WordLanes::of(odd));
    }
  }
  TFK_INLINE Floats sum() const {
    return Floats::make([&](int i) { return part[i].floats(); });
  }
};

#else

struct Line {
  std::uint8_t byte[64];

  TFK_INLINE static Line load(const std::byte* p) {
    Line line;
    __builtin_memcpy(line.byte, p, sizeof(line.byte));
    return line;
  }
  TFK_INLINE Line low() const {
    Line line;
    for (int i = 0; i < 64; ++i) line.byte[i] = byte[i] & 15;
    return line;
  }
  TFK_INLINE Line high() const {
    Line line;
    for (int i = 0; i < 64; ++i) line.byte[i] = byte[i] >> 4;
    return line;
  }
};

template <bool kWide>
struct Dot {
  std::int32_t lane[16];

  TFK_INLINE static Dot of(std::int32_t start) {
    Dot dot;
    for (std::int32_t& x : dot.lane) x = start;
    return dot;
  }
  TFK_INLINE void add(const Line& w, const Codes& a, std::int64_t term) {
    const std::int16_t* const x = a.number + term;
    for (int i = 0; i < 16; ++i) {
      lane[i] += w.byte[4 * i] * x[0] + w.byte[4 * i + 1] * x[2] + w.byte[4 * i + 2] * x[1] +
                 w.byte[4 * i + 3] * x[3];
    }
  }
  TFK_INLINE Floats sum() const {
    float number[16];
    for (int i = 0; i < 16; ++i) number[i] = static_cast<float>(lane[i]);
    return Floats::load(number);
  }
};

#endif
#endif

}  // namespace transformer_kernels::cpu::TFK_ISA
