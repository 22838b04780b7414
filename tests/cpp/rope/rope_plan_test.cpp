// SPDX-License-Identifier: MIT
// The CUDA kernels' plan for laying a rotation over threads.
#include "rope/qk_norm_plan.h"

#include <gtest/gtest.h>

namespace transformer_kernels::cuda {
namespace {

RopeProblem problem(std::int64_t tokens, std::int64_t heads, std::int64_t dim,
                    std::int64_t rotary_dim) {
  RopeProblem p{};
  p.dtype = DType::kBFloat16;
  p.batch = 1;
  p.time = tokens;
  p.q_heads = heads;
  p.dim = dim;
  p.angles.frequencies = rotary_dim / 2;
  p.q_rotated.data = &p;  // not in place
  return p;
}

TEST(RopePlan, every_place_has_one_thread) {
  for (std::int64_t tokens : {1, 7, 1000}) {
    for (std::int64_t heads : {1, 5, 40, 129}) {
      for (std::int64_t dim : {16, 80, 128, 576}) {
        for (std::int64_t rotary_dim : {std::int64_t{16}, dim}) {
          const RopeProblem p = problem(tokens, heads, dim, rotary_dim);
          const RopeGrid g = rope_grid(p, 8);
          EXPECT_GE(g.groups * kRopeHeads, heads);
          EXPECT_GE(2 * 8 * std::int64_t{g.units}, dim);
          EXPECT_GE(g.ctas * kRopeThreads, tokens * g.places());
          EXPECT_LT((g.ctas - 1) * kRopeThreads, tokens * g.places());
        }
      }
    }
  }
}

TEST(RopePlan, what_passes_through_has_units_unless_it_is_there) {
  RopeProblem p = problem(3, 4, 80, 32);
  EXPECT_EQ(rope_grid(p, 8).rotated, 2);
  EXPECT_EQ(rope_grid(p, 8).units, 5);
  p.q_rotated = p.q;
  EXPECT_EQ(rope_grid(p, 8).units, 2);
}

TEST(RopePlan, packs_need_aligned_parts) {
  RopeProblem p = problem(3, 4, 128, 128);
  alignas(16) static char memory[16];
  p.q = p.q_rotated = {memory, 0, 4 * 128, 128};
  EXPECT_TRUE(packs_fit(p));
  p.q.head = 132;
  EXPECT_FALSE(packs_fit(p));
  p.q.head = 136;
  p.q.data = memory + 2;
  EXPECT_FALSE(packs_fit(p));
  p.q.data = memory;
  p.angles.frequencies = 12;  // halves of 24 bytes
  EXPECT_FALSE(packs_fit(p));
  p.angles.interleaved = true;  // whole rows of 48
  EXPECT_TRUE(packs_fit(p));
  p.dtype = DType::kFloat64;
  EXPECT_FALSE(packs_fit(p));
}

TEST(QkNormPlan, lanes_own_all_units_of_a_row) {
  for (std::int64_t dim : {1, 16, 80, 128, 512, 4096}) {
    for (std::int64_t size : {1, 4, 8}) {
      const RopeProblem p = problem(300, 40, dim, dim >= 16 ? 16 : 0);
      const QkNormGrid g = qk_norm_grid(p, size);
      EXPECT_GE(2 * size * g.units, dim);
      EXPECT_EQ(kWarpLanes % g.lanes, 0);
      EXPECT_TRUE(g.lanes == kWarpLanes || g.lanes >= g.units);
      EXPECT_GE(qk_norm_ctas(p, g), 1);
      EXPECT_LE(qk_norm_ctas(p, g), kQkNormSums);
    }
  }
}

}  // namespace
}  // namespace transformer_kernels::cuda
