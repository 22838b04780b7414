// SPDX-License-Identifier: MIT
// Which keys a query sees by its place, and which queries see a key.
#include "attention/common/geometry.h"

#include <gtest/gtest.h>

#include <utility>

#include "attention/attention_problem.h"

namespace transformer_kernels {
namespace {

AttentionProblem problem(std::int64_t keys) {
  AttentionProblem p{};
  p.batch = 1;
  p.queries = 20;
  p.keys = keys;
  p.window_left = p.window_right = -1;
  return p;
}

TEST(AttentionGeometry, VisibleKeysMoveWithTheQuery) {
  AttentionProblem p = problem(50);
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

TEST(AttentionGeometry, SeeingIsTheInverseOfVisible) {
  for (bool bottom_right : {false, true}) {
    for (auto [left, right] : {std::pair{-1, 0}, {3, -1}, {4, 2}, {0, 0}, {-1, -1}}) {
      AttentionProblem p = problem(31);
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

}  // namespace
}  // namespace transformer_kernels
