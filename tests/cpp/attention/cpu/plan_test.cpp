// SPDX-License-Identifier: MIT
// The division of attention into work items.
#include "attention/cpu/plan.h"

#include <gtest/gtest.h>

#include <set>

namespace transformer_kernels::cpu {
namespace {

AttentionBackwardProblem problem(std::int64_t batch, std::int64_t kv_heads, std::int64_t keys) {
  AttentionBackwardProblem p{};
  p.batch = batch;
  p.heads = 2 * kv_heads;
  p.kv_heads = kv_heads;
  p.queries = 100;
  p.keys = keys;
  p.dim = p.value_dim = 64;
  p.window_left = p.window_right = -1;
  return p;
}

TEST(AttentionPlan, NumbersEveryBlockOfEverySequenceOnce) {
  const std::int64_t counts[] = {3, 0, 1, 0, 5};
  const BlockList list(5, 2, [&](std::int64_t b) { return counts[b]; });
  ASSERT_EQ(list.size(), 2 * 9);
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> seen;
  for (std::int64_t i = 0; i < list.size(); ++i) {
    const RowBlock at = list[i];
    EXPECT_LT(at.block, counts[at.batch]);
    EXPECT_LT(at.head, 2);
    EXPECT_EQ(list.first(at.batch, at.head) + at.block, i);
    seen.insert({at.batch, at.head, at.block});
  }
  EXPECT_EQ(seen.size(), 18u);
}

TEST(AttentionPlan, NeighboursHaveTheSameWorkUnderACausalMask) {
  for (std::int64_t count : {1, 2, 7, 8}) {
    std::set<std::int64_t> seen;
    for (std::int64_t place = 0; place < count; ++place) {
      seen.insert(from_both_ends(place, count));
      if (place % 2 == 1) {
        EXPECT_EQ(from_both_ends(place - 1, count) + from_both_ends(place, count), count - 1);
      }
    }
    EXPECT_EQ(std::ssize(seen), count);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
}

TEST(AttentionPlan, FewHeadsShareTheirKeys) {
  EXPECT_EQ(backward_plan(problem(1, 1, 10000)).splits, 16);
  EXPECT_EQ(backward_plan(problem(2, 4, 10000)).splits, 2);
  EXPECT_EQ(backward_plan(problem(8, 4, 10000)).splits, 1);
  EXPECT_EQ(backward_plan(problem(1, 1, kKeyBlock)).splits, 1);
  EXPECT_EQ(backward_plan(problem(0, 4, 10000)).items, 0);
}

TEST(AttentionPlan, ItemsNeverShareAnElementOfTheBiasGradient) {
  const auto with_bias = [](std::int64_t batch, std::int64_t head, std::int64_t col) {
    AttentionBackwardProblem p = problem(4, 3, 1000);
    static float memory = 0;
    p.dbias = {&memory, DType::kFloat32, batch, head, 0, col};
    return backward_plan(p);
  };
  EXPECT_EQ(with_bias(9, 9, 1).items, 4 * 3 * 2);
  EXPECT_EQ(with_bias(0, 9, 1).batches_per_item, 4);
  EXPECT_EQ(with_bias(9, 0, 1).kv_heads_per_item, 3);
  EXPECT_EQ(with_bias(9, 9, 0).splits, 1);
  EXPECT_EQ(with_bias(0, 0, 0).items, 1);
}

}  // namespace
}  // namespace transformer_kernels::cpu
