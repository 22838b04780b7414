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

const NormForwardPlan* chosen(const NormForwardProblem& p, const DeviceLimits& device) {
  for (const NormForwardPlan& plan : kNormForwardPlans) {
    if (norm_forward_refusal(plan, p, device) == nullptr) return &plan;
  }
  return nullptr;
}

const RingPlan* chosen(const NormBackwardProblem& p, const DeviceLimits& device) {
  for (const NormBackwardPlan& plan : kNormBackwardPlans) {
    if (norm_backward_refusal(plan, p, device) == nullptr) return &plan.ring;
  }
  return nullptr;
}

void expect_holds(const RowPlan& plan, const NormForwardProblem& p, const DeviceLimits& device) {
  const RowLoad load = row_load(p);
  EXPECT_LE(staged_bytes(plan, load), device.shared_bytes_per_cta);
  EXPECT_TRUE(plan.packs == 0 || plan.packs * plan.threads >= slice_packs(plan, load));
  EXPECT_TRUE(load.aligned || !plan.wide || (plan.shifted && load.in_step));
  EXPECT_TRUE(device.architecture >= 90 || !plan.needs_sm90());
}

void expect_holds(const RingPlan& plan, const NormForwardProblem& p, const DeviceLimits& device) {
  const bool residual = p.residual.data != nullptr;
  const int stages = norm_forward_ring_stages(plan, residual, device);
  const int stage_bytes = plan.stage_bytes() * (residual ? 2 : 1);
  EXPECT_GE(plan.max_row_bytes(), p.cols * size_of(p.dtype));
  EXPECT_GE(stages, 2);
  EXPECT_LE(plan.ctas * (stages * stage_bytes + ring_static_bytes(plan, 16) + 1024),
            device.shared_bytes_per_cta + 1024);
  EXPECT_TRUE(row_load(p).aligned);
  EXPECT_EQ(device.architecture, 90);
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
        SCOPED_TRACE(describe(p));
        const NormForwardPlan* entry = chosen(p, device);
        ASSERT_NE(entry, nullptr);
        std::visit([&](const auto& plan) { expect_holds(plan, p, device); }, entry->plan);
      }
    }
  }
}

TEST(NormPlan, MisalignedRowsAreShifted) {
  NormForwardProblem p = forward(DType::kBFloat16, 64, 1024);
  EXPECT_FALSE(moves_single_elements(*chosen(p, kHopper)));
  p.y = rows_at(0x20002, 1024);
  EXPECT_TRUE(moves_single_elements(*chosen(p, kHopper)));
  p = forward(DType::kBFloat16, 64, 1024);
  p.bias = reinterpret_cast<const void*>(0x50004);
  EXPECT_TRUE(std::get<RowPlan>(chosen(p, kHopper)->plan).shifted);
  EXPECT_TRUE(
      std::get<RowPlan>(chosen(forward(DType::kBFloat16, 64, 1023), kHopper)->plan).shifted);
  NormBackwardProblem b = backward(DType::kFloat32, 64, 1024);
  b.dy = rows_at(0x20004, 1024);
  EXPECT_TRUE(chosen(b, kHopper)->shifted);
  EXPECT_TRUE(chosen(backward(DType::kBFloat16, 64, 1023), kHopper)->shifted);
  EXPECT_FALSE(chosen(backward(DType::kBFloat16, 64, 1024), kHopper)->shifted);
}

TEST(NormPlan, TraitsPartTheNormsWhereTheyWereMeasuredApart) {
  EXPECT_NE(chosen(forward(DType::kBFloat16, 64, 8192, true), kHopper),
            chosen(forward(DType::kBFloat16, 64, 8192, false), kHopper));
  EXPECT_NE(chosen(backward(DType::kBFloat16, 64, 16384, true), kHopper),
            chosen(backward(DType::kBFloat16, 64, 16384, false), kHopper));
  NormForwardProblem mixed = forward(DType::kBFloat16, 64, 4096);
  mixed.weight_dtype = DType::kFloat32;
  EXPECT_GT(std::get<RowPlan>(chosen(mixed, kHopper)->plan).stack, 1);
  EXPECT_TRUE(std::holds_alternative<RingPlan>(
      chosen(forward(DType::kBFloat16, 64, 131072), kHopper)->plan));
}

TEST(NormPlan, TheRingHoldsTwoRowsOrMoreAndFitsSharedMemory) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 400; ++round) {
    const std::int64_t cols =
        (random() % 2 ? 8 : 1) * (1 + static_cast<std::int64_t>(random() % 20000));
    const DType dtype = kDTypes[1 + random() % 3];
    NormBackwardProblem p = backward(dtype, 1000, cols, random() % 2);
    if (random() % 2) p.dsum = rows_at(0x40000, cols);
    if (random() % 2) p.weight_dtype = DType::kFloat32;
    const RingPlan* plan = chosen(p, kHopper);
    ASSERT_NE(plan, nullptr);
    if (plan->packs == 0) continue;
    EXPECT_GE(plan->max_row_bytes(), cols * size_of(dtype));
    const NormBackwardShape shape = norm_backward_shape(*plan, p, kHopper);
    EXPECT_GE(shape.stages, 2) << describe(p);
    EXPECT_LE(plan->ctas * (shape.shared_bytes + ring_static_bytes(*plan, 8) + 1024),
              kHopper.shared_bytes_per_cta + 1024)
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

void expect_well_formed(const RowPlan& plan) {
  EXPECT_EQ(plan.threads & (plan.threads - 1), 0) << name_of(plan);
  EXPECT_LE(plan.cta_threads() * plan.min_ctas, 2048) << name_of(plan);
  EXPECT_TRUE(plan.rows == 1 || plan.cluster == 1) << name_of(plan);
  EXPECT_TRUE(!plan.bulk || plan.wide) << name_of(plan);
  EXPECT_TRUE(plan.stack == 1 || (plan.bulk && plan.packs == 0)) << name_of(plan);
}

void expect_well_formed(const RingPlan& plan) {
  EXPECT_LE(plan.threads(), 1024) << name_of(plan);
  EXPECT_TRUE(plan.groups <= 1 || plan.cluster == 1) << name_of(plan);
  EXPECT_TRUE(plan.warps <= 1 || plan.groups <= 15) << name_of(plan);
}

TEST(NormPlan, PlansAreWellFormed) {
  for (const NormForwardPlan& entry : kNormForwardPlans) {
    std::visit([](const auto& plan) { expect_well_formed(plan); }, entry.plan);
    if (const RingPlan* ring = std::get_if<RingPlan>(&entry.plan)) {
      // Moments are merged by halves.
      EXPECT_EQ(ring->warps & (ring->warps - 1), 0) << name_of(*ring);
      EXPECT_EQ(ring->cluster & (ring->cluster - 1), 0) << name_of(*ring);
      EXPECT_GE(ring->max_row_bytes(), entry.max_row_bytes) << name_of(*ring);
    }
  }
  for (const NormBackwardPlan& plan : kNormBackwardPlans) expect_well_formed(plan.ring);
}

}  // namespace
}  // namespace transformer_kernels::cuda
