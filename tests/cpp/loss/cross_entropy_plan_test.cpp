// SPDX-License-Identifier: MIT
// The choice of cross-entropy's launch plan on CUDA. Needs no GPU.
#include "loss/cross_entropy_plan.h"

#include <gtest/gtest.h>

#include "device_limits.h"

namespace transformer_kernels::cuda {
namespace {

constexpr DeviceLimits kDevices[] = {kAmpere, kAda, kHopper, kBlackwellDesktop};
constexpr DType kDTypes[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr std::int64_t kWidths[] = {1, 10, 1000, 8192, 32000, 50257, 128256, 262144, 10000019};

CrossEntropyProblem problem(DType dtype, std::int64_t cols, bool gradient) {
  CrossEntropyProblem p{};
  p.dtype = dtype;
  p.rows = 8192;
  p.cols = cols;
  p.x = reinterpret_cast<const void*>(0x10000);
  p.x_stride = p.dx_stride = cols;
  p.target = reinterpret_cast<const void*>(0x20000);
  if (gradient) p.dx = reinterpret_cast<void*>(0x30000);
  return p;
}

// The first plan of the table that takes the problem; null where none does.
const CrossEntropyPlan* chosen(const CrossEntropyProblem& p, const DeviceLimits& device) {
  const auto find = [&](const auto& plans) -> const CrossEntropyPlan* {
    for (const CrossEntropyPlan& plan : plans) {
      if (cross_entropy_refusal(plan, p, device) == nullptr) return &plan;
    }
    return nullptr;
  };
  return p.dx == nullptr ? find(kLossPlans) : find(kLossAndGradientPlans);
}

TEST(CrossEntropyPlan, every_problem_has_one_on_every_device) {
  for (const DeviceLimits& device : kDevices) {
    for (DType dtype : kDTypes) {
      for (std::int64_t cols : kWidths) {
        for (bool gradient : {false, true}) {
          for (bool any : {false, true}) {
            for (std::int64_t step : {0, 2}) {
              CrossEntropyProblem p = problem(dtype, cols, gradient);
              p.label_smoothing = any ? 0.1 : 0;
              p.dx_stride += step;
              const CrossEntropyPlan* plan = chosen(p, device);
              ASSERT_NE(plan, nullptr) << name_of(dtype) << " " << cols;
              EXPECT_TRUE(plan->any_terms || !any);
              EXPECT_TRUE(is_compiled(plan->plan, dtype == DType::kFloat64, gradient));
              EXPECT_LE(staged_bytes(plan->plan, row_load(p)), device.shared_bytes_per_cta);
            }
          }
        }
      }
    }
  }
}

TEST(CrossEntropyPlan, vocabularies_on_hopper) {
  const auto name = [](std::int64_t cols, bool gradient) {
    return name_of(*chosen(problem(DType::kBFloat16, cols, gradient), kHopper));
  };
  EXPECT_EQ(name(50257, false), "shifted bulk t512 r1 c1 p0 m2");
  EXPECT_EQ(name(128256, false), "shifted wide t128 r1 c1 p0 m8");
  EXPECT_EQ(name(50257, true), "shifted bulk t512 r1 c1 p0 m2");
  EXPECT_EQ(name(128256, true), "shifted bulk t512 r1 c4 p0 m3");
  EXPECT_EQ(name(262144, true), "shifted bulk t512 r1 c8 p0 m3");
}

TEST(CrossEntropyPlan, rows_that_lie_differently_move_single_elements) {
  CrossEntropyProblem p = problem(DType::kBFloat16, 50257, true);
  p.dx = reinterpret_cast<void*>(0x30002);
  EXPECT_FALSE(chosen(p, kHopper)->plan.wide);
  p.dx = nullptr;
  p.x = reinterpret_cast<const void*>(0x10002);
  EXPECT_TRUE(chosen(p, kHopper)->plan.wide);
}

TEST(CrossEntropyPlan, parts_cover_their_rows) {
  for (const RowPlan& plan : kPartPlans) {
    for (std::int64_t cols : kWidths) {
      for (std::int64_t rows : {1, 7, 8192}) {
        const PartGrid grid = part_grid(plan, rows, cols, 2);
        EXPECT_GE(std::int64_t{grid.threads} * kPartPacks * grid.parts, slice_packs(plan, cols, 2));
        EXPECT_GE(grid.row_blocks * grid.threads_y, rows);
        EXPECT_EQ(grid.threads * grid.threads_y, kPartThreads);
      }
    }
  }
}

}  // namespace
}  // namespace transformer_kernels::cuda
