// SPDX-License-Identifier: MIT
#include "pointwise/plan.h"

#include <gtest/gtest.h>

namespace transformer_kernels::cuda {
namespace {

// Every pack of every row has a thread, and no block is without work.
void expect_covered(std::int64_t rows, std::int64_t packs, std::int64_t rows_per_thread) {
  SCOPED_TRACE(::testing::Message() << rows << "x" << packs << ", " << rows_per_thread);
  const PointwiseGrid grid = pointwise_grid(rows, packs, rows_per_thread);
  const std::int64_t rows_of_block = grid.threads_y * rows_per_thread;
  EXPECT_LE(grid.threads * grid.threads_y, kPointwiseThreads);
  EXPECT_GE(grid.threads * grid.column_blocks, packs);
  EXPECT_LT(grid.threads * (grid.column_blocks - 1), packs);
  EXPECT_GE(rows_of_block * grid.row_blocks, rows);
  EXPECT_LT(rows_of_block * (grid.row_blocks - 1), rows);
  EXPECT_LE(grid.ctas_y(), 65535);
  EXPECT_LE(grid.ctas_z(), 65535);
  EXPECT_GE(std::int64_t{grid.ctas_y()} * grid.ctas_z(), grid.row_blocks);
  EXPECT_LE(grid.column_blocks, 2147483647);
}

TEST(PointwisePlan, covers_every_pack_once) {
  for (std::int64_t rows : {1L, 2L, 7L, 300L, 65536L, 40000000L}) {
    for (std::int64_t packs : {1L, 2L, 31L, 96L, 128L, 255L, 256L, 257L, 384L, 16384L}) {
      for (std::int64_t rows_per_thread : {1L, 4L, 128L}) {
        expect_covered(rows, packs, rows_per_thread);
      }
    }
  }
  expect_covered(1, std::int64_t{1} << 36, 1);  // a flat tensor of 2^39 numbers of 16 bits
}

TEST(PointwisePlan, narrow_rows_share_a_block) {
  const PointwiseGrid grid = pointwise_grid(65536, 96, 1);
  EXPECT_EQ(grid.threads, 96);
  EXPECT_EQ(grid.threads_y, 2);
  EXPECT_EQ(grid.column_blocks, 1);
}

// Each CTA's sums are of many rows, unless there would be too few CTAs then.
TEST(PointwisePlan, sums_are_few) {
  EXPECT_EQ(rows_per_sum(65536, 96), 32);
  EXPECT_EQ(rows_per_sum(32768, 512), 64);
  EXPECT_EQ(rows_per_sum(1 << 20, 512), 128);
  EXPECT_EQ(rows_per_sum(64, 384), 1);
}

TEST(PointwisePlan, packs_need_alignment) {
  alignas(16) static char memory[64];
  const auto fits = [](int offset, std::int64_t stride, std::int64_t rows, const void* bias) {
    return packs_fit(DType::kBFloat16, rows, {{memory + offset, stride}, Rows{}}, {bias});
  };
  EXPECT_TRUE(fits(0, 8, 2, nullptr));
  EXPECT_TRUE(fits(16, 7, 1, memory));
  EXPECT_FALSE(fits(16, 7, 2, nullptr));
  EXPECT_FALSE(fits(2, 8, 2, nullptr));
  EXPECT_FALSE(fits(0, 8, 2, memory + 2));
}

}  // namespace
}  // namespace transformer_kernels::cuda
