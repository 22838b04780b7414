// SPDX-License-Identifier: MIT
// Launch bounds with room for more registers. Needs no GPU.
#include "core/cuda/occupancy.h"

#include <gtest/gtest.h>

namespace transformer_kernels::cuda {
namespace {

// Registers that a thread is given: a multiple of 8.
int registers(int threads, int ctas) { return 65536 / (threads * ctas) / 8 * 8; }

TEST(Occupancy, FewerCtasLeaveMoreRegisters) {
  for (int threads = 32; threads <= 1024; threads *= 2) {
    for (int ctas = 2; ctas * threads <= 2048; ++ctas) {
      const int fewer = ctas_with_more_registers(threads, ctas);
      EXPECT_GT(registers(threads, fewer), registers(threads, ctas)) << threads << " x " << ctas;
      EXPECT_EQ(registers(threads, fewer + 1), registers(threads, ctas))
          << threads << " x " << ctas;
    }
    EXPECT_EQ(ctas_with_more_registers(threads, 1), 1);
  }
}

// One CTA fewer would leave no register more: they come in steps.
TEST(Occupancy, SmallCtasLeaveByMoreThanOne) { EXPECT_EQ(ctas_with_more_registers(64, 16), 14); }

TEST(Occupancy, ThreadsOfAnSmLimitTheCtas) {
  EXPECT_EQ(ctas_by_threads(256, 5), 5);
  EXPECT_EQ(ctas_by_threads(256, 9), 8);
}

}  // namespace
}  // namespace transformer_kernels::cuda
