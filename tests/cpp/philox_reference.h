// SPDX-License-Identifier: MIT
// The random numbers of dropout, from the definition of Philox.
#pragma once

#include <array>
#include <cstdint>

namespace transformer_kernels::testing {

// Philox4x32-10 as its authors give it: ten rounds, the key raised between them.
inline std::array<std::uint32_t, 4> reference_philox(std::array<std::uint32_t, 4> counter,
                                                     std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
  }
  return counter;
}

// The 16-bit number of element `index`.
inline std::uint32_t random_number(std::uint64_t seed, std::uint64_t offset, std::uint64_t index) {
  const std::uint64_t block = index / 8;
  const auto bits = reference_philox(
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
       static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32)},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const auto word = static_cast<int>(index % 8);
  return (bits[word / 2] >> (16 * (word % 2))) & 0xffff;
}

}  // namespace transformer_kernels::testing
