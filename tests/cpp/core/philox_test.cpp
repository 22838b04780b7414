// SPDX-License-Identifier: MIT
#include "core/math/philox.h"

#include <gtest/gtest.h>

#include <vector>

namespace transformer_kernels::testing {
namespace {

TEST(Philox, gives_the_published_numbers) {
  const auto words = [](std::uint64_t key, std::uint64_t counter, std::uint64_t offset) {
    const PhiloxWords x = philox(key, counter, offset);
    return std::vector<std::uint32_t>(x.word, x.word + 4);
  };
  using Words = std::vector<std::uint32_t>;
  EXPECT_EQ(words(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(words(ones, ones, ones), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace transformer_kernels::testing
