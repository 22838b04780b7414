// SPDX-License-Identifier: MIT
// The division of a bias's gradient among CTAs. Needs no GPU.
#include "attention/bias_gradient/plan.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

namespace transformer_kernels::cuda {
namespace {

AttentionBackwardProblem problem(int varies) {
  AttentionBackwardProblem p{};
  p.batch = 3;
  p.heads = p.kv_heads = 4;
  p.queries = 300;
  p.keys = 200;
  p.window_left = p.window_right = -1;
  p.bottom_right = true;
  p.dbias = {&p, DType::kFloat32, varies & 1, varies >> 1 & 1, varies >> 2 & 1, varies >> 3 & 1};
  return p;
}

using Place = std::tuple<int, int, int, int>;

// How often each tile is a term of some CTA.
std::map<Place, int> terms_of(const AttentionBackwardProblem& p) {
  const BiasGradientPlan plan(p);
  std::map<Place, int> counts;
  for (int cta = 0; cta < plan.ctas(); ++cta) {
    const BiasTerms terms = plan.terms(p, cta);
    ScoreTile at{};
    if (terms.count > 0) at = terms.grid[terms.begin];
    for (int i = 0; i < terms.count; ++i, at = terms.grid.after(at)) {
      const ScoreTile t = terms.first + at;
      ++counts[{t.batch, t.head, t.query_tile, t.key_tile}];
    }
  }
  return counts;
}

TEST(BiasGradientPlan, EveryTileIsATermOnce) {
  for (int varies = 0; varies < 16; ++varies) {
    const std::map<Place, int> counts = terms_of(problem(varies));
    EXPECT_EQ(counts.size(), 3u * 4u * 5u * 4u);
    for (const auto& [place, count] : counts) EXPECT_EQ(count, 1);
  }
}

TEST(BiasGradientPlan, TilesOutOfSightAreNoTerms) {
  for (int varies = 0; varies < 16; ++varies) {
    AttentionBackwardProblem p = problem(varies);
    p.window_left = 70;
    p.window_right = 0;
    const bool sums_both = (varies >> 2) == 0;
    const std::map<Place, int> counts = terms_of(p);
    const Sequence s = p.sequence(0);
    for (int i = 0; i < 5; ++i) {
      for (int j = 0; j < 4; ++j) {
        const Range keys = p.visible(s, {i * 64, std::min<std::int64_t>(i * 64 + 64, p.queries)});
        const bool seen = keys.begin < (j + 1) * 64 && keys.end > j * 64;
        const bool is_term = counts.contains({2, 1, i, j});
        EXPECT_TRUE(sums_both ? is_term || !seen : is_term == seen) << varies << " " << i << j;
      }
    }
  }
}

TEST(BiasGradientPlan, SharesFillADeviceAndNoMore) {
  AttentionBackwardProblem p = problem(0b1110);
  EXPECT_EQ(BiasGradientPlan(p).splits, 3);  // as many as terms
  p.batch = 1000;
  const BiasGradientPlan plan(p);
  EXPECT_EQ(plan.owned.count(), 80);
  EXPECT_EQ(plan.ctas(), 320);
  p.queries = p.keys = 2000;
  EXPECT_EQ(BiasGradientPlan(p).splits, 1);
  p.dbias.batch_stride = 1;
  EXPECT_EQ(BiasGradientPlan(p).splits, 1);
}

// Ends of rows that are no tile's end, or one tile's only part.
TEST(BiasGradientPlan, EveryElementIsWrittenOnce) {
  for (int varies = 0; varies < 16; ++varies) {
    for (const std::int64_t keys : {1, 63, 64, 65, 200}) {
      AttentionBackwardProblem p = problem(varies);
      p.keys = keys;
      std::int64_t count = 1;
      const auto stride = [&](std::int64_t& at, std::int64_t size) {
        const bool owned = at != 0;
        at = owned ? count : 0;
        if (owned) count *= size;
      };
      stride(p.dbias.col_stride, keys);
      stride(p.dbias.row_stride, p.queries);
      stride(p.dbias.head_stride, p.heads);
      stride(p.dbias.batch_stride, p.batch);

      const BiasGradientPlan plan(p);
      std::vector<int> written(static_cast<std::size_t>(count));
      for (int cta = 0; cta < plan.owned.count(); ++cta) {
        const ScoreTile own = plan.tile(cta);
        const BiasExtent extent = plan.extent(p, own);
        for (int row = 0; row < extent.rows; ++row) {
          for (int col = 0; col < extent.cols; ++col) {
            ++written.at(static_cast<std::size_t>(p.dbias.offset(own.batch, own.head,
                                                                 own.query_tile * kBiasTile + row,
                                                                 own.key_tile * kBiasTile + col)));
          }
        }
      }
      EXPECT_EQ(written, std::vector<int>(written.size(), 1)) << varies << " " << keys;
    }
  }
}

}  // namespace
}  // namespace transformer_kernels::cuda
