// SPDX-License-Identifier: MIT
#include "core/cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "transformer_kernels/cpu.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::cpu {
namespace {

const std::vector<Isa> kAll = {Isa::kScalar, Isa::kNeon,       Isa::kAvx2,
                               Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

TEST(Isa, default_is_the_best) {
  EXPECT_EQ(choose_isa(nullptr, kAll), Isa::kAmx);
  EXPECT_EQ(choose_isa("", {Isa::kScalar, Isa::kAvx2}), Isa::kAvx2);
}

TEST(Isa, each_usable_one_can_be_asked_for) {
  for (const Isa isa : kAll) EXPECT_EQ(choose_isa(name_of(isa), kAll), isa);
  EXPECT_EQ(choose_isa("avx2", {Isa::kAvx2, Isa::kAmx}), Isa::kAvx2);
}

std::string message_for(const char* requested, const std::vector<Isa>& usable) {
  try {
    choose_isa(requested, usable);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kValue);
    return error.what();
  }
  return "no error";
}

TEST(Isa, others_are_refused_in_words) {
  EXPECT_EQ(message_for("sse9", {Isa::kScalar, Isa::kAvx2}),
            "TFK_CPU_ISA is sse9, expected one of scalar, avx2 (what this CPU and build have)");
  EXPECT_EQ(message_for("avx512", {Isa::kScalar, Isa::kAvx2}),
            "TFK_CPU_ISA is avx512, expected one of scalar, avx2 (what this CPU and build have)");
  EXPECT_EQ(message_for("avx512", {Isa::kAvx2, Isa::kAmx}),
            "TFK_CPU_ISA is avx512, expected one of avx2, amx (what this CPU and build have)");
  EXPECT_EQ(message_for("AVX2", {Isa::kScalar}),
            "TFK_CPU_ISA is AVX2, expected one of scalar (what this CPU and build have)");
  EXPECT_EQ(message_for("", {}),
            "this CPU has none of the instruction sets that the library was built for, expected a "
            "build with -DTFK_ISAS=all");
  EXPECT_EQ(message_for("avx2", {}),
            "TFK_CPU_ISA is avx2, expected one of none (what this CPU and build have)");
}

TEST(Isa, the_one_in_use_is_usable) {
  const std::vector<Isa> usable = usable_isas();
  EXPECT_EQ(std::count(usable.begin(), usable.end(), isa()), 1);
  const std::vector<std::string> names = cpu_instruction_sets();
  ASSERT_EQ(names.size(), usable.size());
  EXPECT_EQ(names.back(), name_of(usable.back()));
  EXPECT_EQ(cpu_instruction_set(), name_of(isa()));
}

TEST(Isa, pairs_are_fast_by_tiles_and_not_without_their_instructions) {
  EXPECT_TRUE(multiplies_pairs_fast() || isa() != Isa::kAmx);
  EXPECT_TRUE(!multiplies_pairs_fast() || isa() >= Isa::kAvx512Bf16);
}

}  // namespace
}  // namespace transformer_kernels::cpu
