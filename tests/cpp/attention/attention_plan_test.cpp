// SPDX-License-Identifier: MIT
// How attention is cut into work items.
#include "attention/attention_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "attention/row_blocks.h"

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
  EXPECT_EQ(backward_plan(problem(1, 1, 10000)).shares, 16);
  EXPECT_EQ(backward_plan(problem(2, 4, 10000)).shares, 2);
  EXPECT_EQ(backward_plan(problem(8, 4, 10000)).shares, 1);
  EXPECT_EQ(backward_plan(problem(1, 1, kKeyBlock)).shares, 1);
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
  EXPECT_EQ(with_bias(9, 9, 0).shares, 1);
  EXPECT_EQ(with_bias(0, 0, 0).items, 1);
}

TEST(AttentionPlan, VisibleKeysMoveWithTheQuery) {
  AttentionBackwardProblem p = problem(1, 1, 50);
  p.queries = 20;
  p.window_left = 3;
  p.window_right = 2;
  const Sequence s = p.sequence(0);
  EXPECT_EQ(p.visible(s, 10).begin, 7);
  EXPECT_EQ(p.visible(s, 10).end, 13);
  p.bottom_right = true;
  EXPECT_EQ(p.visible(s, 10).begin, 37);
  EXPECT_EQ(p.visible(s, 19).end, 50);
  EXPECT_EQ(p.visible(s, Range{10, 20}).begin, 37);
  EXPECT_EQ(p.visible(s, Range{10, 20}).end, 50);
  p.keys = 5;
  EXPECT_TRUE(p.visible(p.sequence(0), 2).empty());
}

TEST(AttentionPlan, SeeingIsTheInverseOfVisible) {
  for (bool bottom_right : {false, true}) {
    for (auto [left, right] : {std::pair{-1, 0}, {3, -1}, {4, 2}, {0, 0}, {-1, -1}}) {
      AttentionBackwardProblem p = problem(1, 1, 31);
      p.queries = 20;
      p.window_left = left;
      p.window_right = right;
      p.bottom_right = bottom_right;
      const Sequence s = p.sequence(0);
      for (std::int64_t key = 0; key < s.keys; ++key) {
        const Range seeing = p.seeing(s, Range{key, key + 1});
        for (std::int64_t query = 0; query < s.queries; ++query) {
          const Range seen = p.visible(s, query);
          EXPECT_EQ(query >= seeing.begin && query < seeing.end,
                    key >= seen.begin && key < seen.end);
        }
      }
    }
  }
}

TEST(AttentionPlan, BlocksOfSequencesThatTheHostCannotSee) {
  const std::int32_t offsets[] = {0, 7, 7, 71, 200, 200, 201};
  const cuda::RowBlocks blocks{offsets, 6, 230, 64};
  std::vector<int> seen(230);
  for (std::int64_t i = 0; i < blocks.count(); ++i) {
    const cuda::RowBlocks::Place at = blocks[i];
    const int begin = offsets[at.batch] + at.first;
    for (int row = begin; row < std::min(begin + 64, offsets[at.batch + 1]); ++row) ++seen[row];
  }
  for (int row = 0; row < 230; ++row) EXPECT_EQ(seen[row], row < 201 ? 1 : 0) << row;

  const cuda::RowBlocks even{nullptr, 3, 65, 64};
  ASSERT_EQ(even.count(), 6);
  EXPECT_EQ(even[3].batch, 1);
  EXPECT_EQ(even[3].first, 64);
  EXPECT_EQ((cuda::RowBlocks{nullptr, 0, 65, 64}.count()), 0);
}

}  // namespace
}  // namespace transformer_kernels::cpu
