// SPDX-License-Identifier: MIT
// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011): random bits as a function of a key and a counter. core/cpu/philox_block.h computes many
// counters at once.
#pragma once

#include <cstdint>

namespace transformer_kernels {

struct PhiloxWords {
  std::uint32_t word[4];
};

inline constexpr std::uint32_t kPhiloxFactor0 = 0xd2511f53;
inline constexpr std::uint32_t kPhiloxFactor1 = 0xcd9e8d57;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9e3779b9;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xbb67ae85;
inline constexpr int kPhiloxRounds = 10;

// The 64-bit product of two 32-bit numbers. CUDA's compiler has to be told that one instruction
// computes it.
[[gnu::always_inline]] constexpr std::uint64_t wide_product(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return std::uint64_t{a} * b;
#endif
}

// `counter` are the low 64 bits of the counter, `offset` the high ones.
[[gnu::always_inline]] constexpr PhiloxWords philox(std::uint64_t key, std::uint64_t counter,
                                                    std::uint64_t offset) {
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  PhiloxWords x{{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
                 static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32)}};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t a = wide_product(kPhiloxFactor0, x.word[0]);
    const std::uint64_t b = wide_product(kPhiloxFactor1, x.word[2]);
    x = {{static_cast<std::uint32_t>(b >> 32) ^ x.word[1] ^ key0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ x.word[3] ^ key1, static_cast<std::uint32_t>(a)}};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return x;
}

}  // namespace transformer_kernels
