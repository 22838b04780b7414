// SPDX-License-Identifier: MIT
#include "core/row_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace transformer_kernels {
namespace {

TEST(RowBlocks, NumbersSequencesThatTheHostCannotSee) {
  const std::int32_t offsets[] = {0, 7, 7, 71, 200, 200, 201};
  const RowBlocks blocks{offsets, 6, 230, 64};
  std::vector<int> seen(230);
  for (std::int64_t i = 0; i < blocks.count(); ++i) {
    const RowBlocks::Place at = blocks[i];
    const int begin = offsets[at.batch] + at.first;
    for (int row = begin; row < std::min(begin + 64, offsets[at.batch + 1]); ++row) ++seen[row];
  }
  for (int row = 0; row < 230; ++row) EXPECT_EQ(seen[row], row < 201 ? 1 : 0) << row;
}

TEST(RowBlocks, NumbersSequencesOfOneLength) {
  const RowBlocks even{nullptr, 3, 65, 64};
  ASSERT_EQ(even.count(), 6);
  EXPECT_EQ(even[3].batch, 1);
  EXPECT_EQ(even[3].first, 64);
  EXPECT_EQ((RowBlocks{nullptr, 0, 65, 64}.count()), 0);
}

}  // namespace
}  // namespace transformer_kernels
