// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "core/cpu/isa.h"
#include "numbers.h"
#include "transformer_kernels/error.h"

namespace transformer_kernels::testing {

std::mt19937_64& random_engine() {
  static const unsigned long long seed = [] {
    const char* wanted = std::getenv("TFK_TEST_SEED");
    return wanted ? std::strtoull(wanted, nullptr, 10) : std::random_device{}();
  }();
  static std::mt19937_64 engine = [] {
    std::printf("TFK_TEST_SEED=%llu\n", seed);
    return std::mt19937_64(seed);
  }();
  return engine;
}

}  // namespace transformer_kernels::testing

// 77 tells CTest that the tests were skipped: TFK_CPU_ISA asks for what this CPU does not have.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    std::printf("CPU kernels: %s\n", name_of(transformer_kernels::cpu::isa()));
  } catch (const transformer_kernels::Error& error) {
    std::printf("skipped: %s\n", error.what());
    return 77;
  }
  return RUN_ALL_TESTS();
}
