// SPDX-License-Identifier: MIT
#include "embedding/plan.h"

#include <gtest/gtest.h>

namespace transformer_kernels::cuda {
namespace {

TEST(EmbeddingPlan, blocks_where_rows_may_have_many_tokens) {
  EXPECT_EQ(block_levels(0, 100), 0);
  EXPECT_EQ(block_levels(256, 50257), 0);
  EXPECT_EQ(block_levels(8192, 50257), 1);
  EXPECT_EQ(block_levels(8192, 2), 2);  // token types
  EXPECT_EQ(block_levels(1 << 20, 50257), 3);
  EXPECT_EQ(block_levels(2147483647, 1), kMostLevels);
}

TEST(EmbeddingPlan, threads_share_a_row) {
  for (std::int64_t packs : {1, 2, 3, 8, 64, 65, 96, 512, 100000}) {
    const RowChunks row = row_chunks(packs);
    EXPECT_GE(std::int64_t{row.chunks} * row.lanes() * kSumPacks, packs);
    EXPECT_LT((std::int64_t{row.chunks} - 1) * row.lanes() * kSumPacks, packs);
    EXPECT_LE(row.lanes(), 32);
  }
  EXPECT_EQ(row_chunks(96).chunks, 2);
  EXPECT_EQ(row_chunks(8).lanes(), 4);
}

TEST(EmbeddingPlan, rows_of_a_cta) {
  EXPECT_EQ(sum_rows(50257, row_chunks(96)), kMostSumRows);
  EXPECT_EQ(sum_rows(1024, row_chunks(96)), 4);  // of positions: every warp has a chunk
  EXPECT_EQ(sum_rows(2, row_chunks(96)), 4);
  EXPECT_EQ(sum_rows(2147483648, row_chunks(8)), kMostSumRows);
}

TEST(EmbeddingPlan, sorted_tokens_of_a_cta) {
  EXPECT_TRUE(sums_go_over_tokens(8192, 50257));
  EXPECT_FALSE(sums_go_over_tokens(8192, 1024));
  EXPECT_EQ(sum_places(1), 8);
  EXPECT_EQ(sum_places(8192), 8);
  EXPECT_EQ(sum_places(1 << 20), kMostSumRows);
}

TEST(EmbeddingPlan, bits_that_are_sorted_hold_the_number_of_rows) {
  EXPECT_EQ(index_bits(1), 1);
  EXPECT_EQ(index_bits(50257), 16);
  EXPECT_EQ(index_bits(65535), 16);
  EXPECT_EQ(index_bits(65536), 17);
  EXPECT_EQ(index_bits(2147483648), 32);
}

}  // namespace
}  // namespace transformer_kernels::cuda
