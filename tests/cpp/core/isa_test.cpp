// SPDX-License-Identifier: MIT
#include "core/cpu/isa.h"

#include <gtest/gtest.h>

#include "transformer_kernels/error.h"

namespace transformer_kernels::cpu {
namespace {

TEST(Isa, default_is_the_best) {
  EXPECT_EQ(choose_isa(nullptr, Isa::kAvx512), Isa::kAvx512);
  EXPECT_EQ(choose_isa("", Isa::kAvx2), Isa::kAvx2);
}

TEST(Isa, a_lower_one_can_be_asked_for) {
  EXPECT_EQ(choose_isa("scalar", Isa::kAvx512Bf16), Isa::kScalar);
  EXPECT_EQ(choose_isa("avx2", Isa::kAvx512Bf16), Isa::kAvx2);
  EXPECT_EQ(choose_isa("avx512", Isa::kAvx512Bf16), Isa::kAvx512);
  EXPECT_EQ(choose_isa("avx512_bf16", Isa::kAvx512Bf16), Isa::kAvx512Bf16);
  EXPECT_EQ(choose_isa("avx512_bf16", Isa::kAmx), Isa::kAvx512Bf16);
  EXPECT_EQ(choose_isa("amx", Isa::kAmx), Isa::kAmx);
}

std::string message_for(const char* requested, Isa best) {
  try {
    choose_isa(requested, best);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kValue);
    return error.what();
  }
  return "no error";
}

TEST(Isa, others_are_refused_in_words) {
  EXPECT_EQ(message_for("sse9", Isa::kAvx2),
            "TFK_CPU_ISA is sse9, expected one of scalar, avx2 (what this CPU and build have)");
  EXPECT_EQ(message_for("avx512", Isa::kAvx2),
            "TFK_CPU_ISA is avx512, expected one of scalar, avx2 (what this CPU and build have)");
  EXPECT_EQ(message_for("amx", Isa::kAvx512Bf16),
            "TFK_CPU_ISA is amx, expected one of scalar, avx2, avx512, avx512_bf16 (what this CPU "
            "and build have)");
  EXPECT_EQ(message_for("AVX2", Isa::kScalar),
            "TFK_CPU_ISA is AVX2, expected one of scalar (what this CPU and build have)");
}

TEST(Isa, the_one_in_use_is_not_above_the_best) { EXPECT_LE(isa(), best_isa()); }

TEST(Isa, pairs_are_fast_by_tiles_and_not_without_their_instructions) {
  EXPECT_TRUE(multiplies_pairs_fast() || isa() != Isa::kAmx);
  EXPECT_TRUE(!multiplies_pairs_fast() || isa() >= Isa::kAvx512Bf16);
}

}  // namespace
}  // namespace transformer_kernels::cpu
