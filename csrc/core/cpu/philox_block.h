// SPDX-License-Identifier: MIT
// Philox4x32-10 (core/math/philox.h) of several counters at once. Compiled once per instruction
// set; see core/cpu/isa.h.
#pragma once

#include <cstdint>

#include "core/cpu/simd.h"
#include "core/math/philox.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr int kPhiloxCounters = 8;
inline constexpr int kPhiloxNumbers = 8 * kPhiloxCounters;  // of 16 bits each

#if TFK_ISA_LEVEL == 0 && !defined(TFK_ISA_NEON)

// The numbers of counters first, first + 1, ... in order: the halves of the words of each, low
// halves first.
inline void philox_block(std::uint64_t key, std::uint64_t first, std::uint64_t offset,
                         std::uint16_t* numbers) {
  for (int i = 0; i < kPhiloxCounters; ++i) {
    const PhiloxWords bits = philox(key, first + static_cast<std::uint64_t>(i), offset);
    for (int n = 0; n < 8; ++n) {
      numbers[8 * i + n] = static_cast<std::uint16_t>(bits.word[n / 2] >> (n % 2 * 16));
    }
  }
}

#else

// A word of a counter in the low half of each lane. The high halves are ignored until the end:
// products take the low ones.
#if TFK_ISA_LEVEL == 1
using WordLanes = __m256i;
TFK_INLINE WordLanes low_products(WordLanes a, WordLanes b) { return _mm256_mul_epu32(a, b); }
TFK_INLINE WordLanes even_lanes(WordLanes a, WordLanes b) { return _mm256_unpacklo_epi64(a, b); }
TFK_INLINE WordLanes odd_lanes(WordLanes a, WordLanes b) { return _mm256_unpackhi_epi64(a, b); }
#elif defined(TFK_ISA_NEON)
using WordLanes = uint64x2_t;
TFK_INLINE WordLanes low_products(WordLanes a, WordLanes b) {
  return vmull_u32(vmovn_u64(a), vmovn_u64(b));
}
TFK_INLINE WordLanes even_lanes(WordLanes a, WordLanes b) { return vzip1q_u64(a, b); }
TFK_INLINE WordLanes odd_lanes(WordLanes a, WordLanes b) { return vzip2q_u64(a, b); }
#else
using WordLanes = __m512i;
TFK_INLINE WordLanes low_products(WordLanes a, WordLanes b) { return _mm512_mul_epu32(a, b); }
TFK_INLINE WordLanes even_lanes(WordLanes a, WordLanes b) { return _mm512_unpacklo_epi64(a, b); }
TFK_INLINE WordLanes odd_lanes(WordLanes a, WordLanes b) { return _mm512_unpackhi_epi64(a, b); }
#endif

// WordLanes as a vector type of the compiler, which has operators.
using CounterWords [[gnu::vector_size(sizeof(WordLanes))]] = unsigned long long;

TFK_INLINE CounterWords products(std::uint32_t a, CounterWords b) {
  const CounterWords factor = CounterWords{} + static_cast<unsigned long long>(a);
  return __builtin_bit_cast(CounterWords, low_products(__builtin_bit_cast(WordLanes, factor),
                                                       __builtin_bit_cast(WordLanes, b)));
}

// Writes words 0 to 3 of each lane's counter, first those of the even lanes.
TFK_INLINE void store_counter_words(const CounterWords (&x)[4], std::uint16_t* numbers) {
  constexpr unsigned long long kLow = 0xffffffff;
  const auto front = __builtin_bit_cast(WordLanes, (x[0] & kLow) | x[1] << 32);
  const auto back = __builtin_bit_cast(WordLanes, (x[2] & kLow) | x[3] << 32);
  const WordLanes pairs[] = {even_lanes(front, back), odd_lanes(front, back)};
  __builtin_memcpy(numbers, pairs, sizeof(pairs));
}

// The numbers of counters first, first + 1, ... in order: the halves of the words of each, low
// halves first.
inline void philox_block(std::uint64_t key, std::uint64_t first, std::uint64_t offset,
                         std::uint16_t* numbers) {
  constexpr int kLanes = sizeof(CounterWords) / 8;
  constexpr int kVectors = kPhiloxCounters / kLanes;
  CounterWords lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i % 2 * (kLanes / 2) + i / 2;
  CounterWords x[kVectors][4];
  for (int v = 0; v < kVectors; ++v) {
    x[v][0] = lane + (first + static_cast<std::uint64_t>(v * kLanes));
    x[v][1] = x[v][0] >> 32;
    x[v][2] = CounterWords{} + offset;
    x[v][3] = x[v][2] >> 32;
  }
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (auto& words : x) {
      const CounterWords a = products(kPhiloxFactor0, words[0]);
      const CounterWords b = products(kPhiloxFactor1, words[2]);
      words[0] = (b >> 32) ^ words[1] ^ static_cast<unsigned long long>(key0);
      words[1] = b;
      words[2] = (a >> 32) ^ words[3] ^ static_cast<unsigned long long>(key1);
      words[3] = a;
    }
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  for (int v = 0; v < kVectors; ++v) store_counter_words(x[v], numbers + v * kLanes * 8);
}

#endif

}  // namespace transformer_kernels::cpu::TFK_ISA
