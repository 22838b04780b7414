// SPDX-License-Identifier: MIT
#include "decode/sampling/group_plan.h"

#include <gtest/gtest.h>

#include "device_limits.h"

namespace transformer_kernels::cuda::sampling {
namespace {

void expect_plan(const DeviceLimits& device, std::int64_t rows, std::int64_t cols,
                 GroupPlan expected) {
  const GroupPlan plan = plan_of(device, rows, cols);
  EXPECT_EQ(plan.ctas, expected.ctas) << rows << "x" << cols;
  EXPECT_EQ(plan.part, expected.part) << rows << "x" << cols;
}

TEST(GroupPlan, few_rows_are_shared_by_more_ctas) {
  expect_plan(kHopper, 1, 131072, {16, 8192});
  expect_plan(kHopper, 8, 131072, {16, 8192});
  expect_plan(kHopper, 64, 131072, {8, 16384});
  expect_plan(kHopper, 64, 151936, {16, 10240});
  expect_plan(kBlackwellDesktop, 1, 131072, {8, 16384});
  expect_plan(kAmpere, 1, 131072, {1, 131072});
}

TEST(GroupPlan, short_rows_have_one_cta) {
  expect_plan(kHopper, 1, 1, {1, 2048});
  expect_plan(kHopper, 1, 2048, {1, 2048});
  expect_plan(kHopper, 1, 2049, {2, 2048});
  expect_plan(kHopper, 4000, 600, {1, 2048});
}

TEST(GroupPlan, every_element_has_a_cta) {
  for (const DeviceLimits& device : {kAmpere, kAda, kHopper, kBlackwellDesktop}) {
    for (std::int64_t cols = 1; cols <= std::int64_t{1} << 20; cols = cols * 5 / 3 + 1) {
      for (const std::int64_t rows : {1, 7, 64, 5000}) {
        const GroupPlan plan = plan_of(device, rows, cols);
        EXPECT_GE(std::int64_t{plan.ctas} * plan.part, cols);
        EXPECT_EQ(plan.part % kPartStep, 0);
        EXPECT_LE(plan.ctas, kMostCtas);
      }
    }
  }
}

}  // namespace
}  // namespace transformer_kernels::cuda::sampling
