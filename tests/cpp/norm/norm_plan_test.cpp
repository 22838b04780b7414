// SPDX-License-Identifier: MIT
// Which launch plan the norms take on CUDA. Needs no GPU.
#include "norm/norm_plan.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>

namespace transformer_kernels::cuda {
namespace {

constexpr DeviceLimits kAmpere{
    .architecture = 80, .processors = 108, .shared_bytes_per_cta = 166912};
constexpr DeviceLimits kHopper{
    .architecture = 90, .processors = 132, .shared_bytes_per_cta = 232448};
constexpr DType kDTypes[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};

Rows rows_at(std::uintptr_t address, std::int64_t stride) {
  return {reinterpret_cast<void*>(address), stride};
}

NormForwardProblem forward(DType dtype, std::int64_t rows, std::int64_t cols, bool center = true) {
  NormForwardProblem p{};
  p.center = center;
  p.dtype = p.weight_dtype = dtype;
  p.rows = rows;
  p.cols = cols;
  p.x = rows_at(0x10000, cols);
  p.y = rows_at(0x20000, cols);
  return p;
}

NormBackwardProblem backward(DType dtype, std::int64_t rows, std::int64_t cols,
                             bool center = true) {
  NormBackwardProblem p{};
  p.center = center;
  p.dtype = p.weight_dtype = dtype;
  p.rows = rows;
  p.cols = cols;
  p.x = rows_at(0x10000, cols);
  p.dy = rows_at(0x20000, cols);
  p.dx = rows_at(0x30000, cols);
  return p;
}

const RowPlan* chosen(const NormForwardProblem& p, const DeviceLimits& device) {
  for (const NormPlan& plan : kNormForwardPlans) {
    if (norm_forward_refusal(plan, p, device) == nullptr) return &plan.plan;
  }
  return nullptr;
}

const RingPlan* chosen(const NormBackwardProblem& p, const DeviceLimits& device) {
  for (const RingPlan& plan : kNormBackwardPlans) {
    if (norm_backward_refusal(plan, p, device) == nullptr) return &plan;
  }
  return nullptr;
}

TEST(NormPlan, EveryForwardProblemHasAPlanThatHoldsIt) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 400; ++round) {
    const std::int64_t cols = 1 + static_cast<std::int64_t>(random() % (2ull << random() % 23));
    for (const DeviceLimits& device : {kAmpere, kHopper}) {
      for (const DType dtype : kDTypes) {
        NormForwardProblem p = forward(dtype, 1 + random() % 1000, cols, random() % 2);
        if (random() % 2) p.residual = p.sum = rows_at(0x40000, cols);
        if (random() % 2 && dtype != DType::kFloat64) p.weight_dtype = DType::kFloat32;
        const RowPlan* plan = chosen(p, device);
        ASSERT_NE(plan, nullptr) << describe(p);
        const RowLoad load = row_load(p);
        EXPECT_LE(staged_bytes(*plan, load), device.shared_bytes_per_cta) << describe(p);
        if (plan->packs > 0) {
          EXPECT_GE(plan->packs * plan->threads, slice_packs(*plan, load));
        }
        if (plan->wide) {
          EXPECT_TRUE(load.aligned) << describe(p);
        }
        if (device.architecture < 90) {
          EXPECT_FALSE(plan->needs_sm90()) << describe(p);
        }
      }
    }
  }
}

TEST(NormPlan, AnyMisalignedOperandMakesEveryAccessNarrow) {
  EXPECT_TRUE(chosen(forward(DType::kBFloat16, 64, 1024), kHopper)->bulk);
  NormForwardProblem p = forward(DType::kBFloat16, 64, 1024);
  p.y = rows_at(0x20002, 1024);
  EXPECT_FALSE(chosen(p, kHopper)->wide);
  p = forward(DType::kBFloat16, 64, 1024);
  p.bias = reinterpret_cast<const void*>(0x50004);
  EXPECT_FALSE(chosen(p, kHopper)->wide);
  EXPECT_FALSE(chosen(forward(DType::kBFloat16, 64, 1023), kHopper)->wide);
  NormBackwardProblem b = backward(DType::kFloat32, 64, 1024);
  b.dy = rows_at(0x20004, 1024);
  EXPECT_EQ(chosen(b, kHopper)->packs, 0);
}

TEST(NormPlan, TraitsPartTheNormsWhereTheyWereMeasuredApart) {
  const RowPlan* layer = chosen(forward(DType::kBFloat16, 64, 16384, true), kHopper);
  const RowPlan* rms = chosen(forward(DType::kBFloat16, 64, 16384, false), kHopper);
  EXPECT_NE(layer, rms);
  EXPECT_NE(chosen(backward(DType::kBFloat16, 64, 4096, true), kHopper),
            chosen(backward(DType::kBFloat16, 64, 4096, false), kHopper));
  NormForwardProblem mixed = forward(DType::kBFloat16, 64, 131072);
  mixed.weight_dtype = DType::kFloat32;
  EXPECT_GT(chosen(mixed, kHopper)->stack, 1);
}

TEST(NormPlan, TheRingHoldsTwoRowsOrMoreAndFitsSharedMemory) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 400; ++round) {
    const std::int64_t cols = 8 * (1 + static_cast<std::int64_t>(random() % 20000));
    const DType dtype = kDTypes[1 + random() % 3];
    NormBackwardProblem p = backward(dtype, 1000, cols, random() % 2);
    if (random() % 2) p.dsum = rows_at(0x40000, cols);
    if (random() % 2) p.weight_dtype = DType::kFloat32;
    const RingPlan* plan = chosen(p, kHopper);
    ASSERT_NE(plan, nullptr);
    if (plan->packs == 0) continue;
    EXPECT_GE(plan->max_row_bytes(), cols * size_of(dtype));
    const RingShape shape = ring_shape(*plan, p, kHopper);
    EXPECT_GE(shape.stages, 2) << describe(p);
    EXPECT_LE(shape.shared_bytes + ring_static_bytes(*plan), kHopper.shared_bytes_per_cta)
        << describe(p) << " " << name_of(*plan);
  }
}

TEST(NormPlan, WithoutTheRingThereIsTheKernelThatRunsAnywhere) {
  EXPECT_EQ(chosen(backward(DType::kFloat32, 64, 1024), kAmpere)->packs, 0);
  EXPECT_EQ(chosen(backward(DType::kFloat64, 64, 1024), kHopper)->packs, 0);
  EXPECT_EQ(chosen(backward(DType::kFloat32, 64, std::int64_t{1} << 33), kHopper)->packs, 0);
  EXPECT_EQ(chosen(backward(DType::kFloat32, 0, 1024), kHopper)->packs, 0);
  EXPECT_EQ(chosen(backward(DType::kFloat32, 64, 0), kHopper)->packs, 0);
}

TEST(NormPlan, PlansAreWellFormed) {
  for (const NormPlan& row : kNormForwardPlans) {
    const RowPlan& plan = row.plan;
    EXPECT_EQ(plan.threads & (plan.threads - 1), 0) << name_of(plan);
    EXPECT_LE(plan.cta_threads() * plan.min_ctas, 2048) << name_of(plan);
    EXPECT_TRUE(plan.rows == 1 || plan.cluster == 1) << name_of(plan);
    EXPECT_TRUE(!plan.bulk || plan.wide) << name_of(plan);
    EXPECT_TRUE(plan.stack == 1 || (plan.bulk && plan.packs == 0)) << name_of(plan);
  }
  for (const RingPlan& plan : kNormBackwardPlans) {
    EXPECT_LE(plan.threads(), 1024) << name_of(plan);
    EXPECT_TRUE(plan.groups <= 1 || plan.cluster == 1) << name_of(plan);
    EXPECT_TRUE(plan.warps <= 1 || plan.groups <= 15) << name_of(plan);
  }
}

}  // namespace
}  // namespace transformer_kernels::cuda
