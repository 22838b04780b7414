// SPDX-License-Identifier: MIT
// The choice of the norms' launch plan on CUDA. Needs no GPU.
#include "norm/plan.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <set>

#include "device_limits.h"
#include "norm/dropout_plan.h"
#include "numbers.h"

namespace transformer_kernels::cuda {
namespace {

constexpr std::int64_t kMany = 100000;  // rows: too many for a direct plan
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

const NormBackwardPlan* chosen(const NormBackwardProblem& p, const DeviceLimits& device) {
  for (const NormBackwardPlan& plan : kNormBackwardPlans) {
    if (norm_backward_refusal(plan, p, device) == nullptr) return &plan;
  }
  return nullptr;
}

// Null where another kind of plan runs.
const RingPlan* chosen_ring(const NormBackwardProblem& p, const DeviceLimits& device) {
  return std::get_if<RingPlan>(&chosen(p, device)->plan);
}

bool is_plain(const NormBackwardProblem& p, const DeviceLimits& device) {
  return std::holds_alternative<PlainPlan>(chosen(p, device)->plan);
}

template <class Problem>
bool is_direct(const Problem& p) {
  return std::holds_alternative<DirectPlan>(chosen(p, kHopper)->plan);
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

template <class Problem>
void expect_holds(const DirectPlan& plan, const Problem& p, const DeviceLimits&) {
  EXPECT_TRUE(row_load(p).aligned);
  EXPECT_NE(p.dtype, DType::kFloat64);
  const std::int64_t packs = p.cols * size_of(p.dtype) / 16;
  EXPECT_GE(std::int64_t{plan.packs} * direct_threads(plan, packs), packs);
  EXPECT_LE(direct_threads(plan, packs), plan.most_threads);
}

TEST(NormPlan, EveryForwardProblemHasAPlanThatHoldsIt) {
  std::mt19937_64& random = testing::random_engine();
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
  NormForwardProblem p = forward(DType::kBFloat16, kMany, 1024);
  EXPECT_FALSE(moves_single_elements(*chosen(p, kHopper)));
  p.y = rows_at(0x20002, 1024);
  EXPECT_TRUE(moves_single_elements(*chosen(p, kHopper)));
  p = forward(DType::kBFloat16, kMany, 1024);
  p.bias = reinterpret_cast<const void*>(0x50004);
  EXPECT_TRUE(std::get<RowPlan>(chosen(p, kHopper)->plan).shifted);
  EXPECT_TRUE(
      std::get<RowPlan>(chosen(forward(DType::kBFloat16, kMany, 1023), kHopper)->plan).shifted);
  NormBackwardProblem b = backward(DType::kFloat32, kMany, 1024);
  b.dy = rows_at(0x20004, 1024);
  EXPECT_TRUE(chosen_ring(b, kHopper)->shifted);
  EXPECT_TRUE(chosen_ring(backward(DType::kBFloat16, kMany, 1023), kHopper)->shifted);
  EXPECT_FALSE(chosen_ring(backward(DType::kBFloat16, kMany, 1024), kHopper)->shifted);
}

TEST(NormPlan, TraitsPartTheNormsWhereTheyWereMeasuredApart) {
  EXPECT_NE(chosen(forward(DType::kBFloat16, kMany, 8192, true), kHopper),
            chosen(forward(DType::kBFloat16, kMany, 8192, false), kHopper));
  EXPECT_NE(chosen(backward(DType::kBFloat16, kMany, 16384, true), kHopper),
            chosen(backward(DType::kBFloat16, kMany, 16384, false), kHopper));
  EXPECT_NE(chosen(backward(DType::kBFloat16, kMany, 8192, true), kHopper),
            chosen(backward(DType::kBFloat16, kMany, 8192, false), kHopper));
  EXPECT_NE(chosen(backward(DType::kFloat32, kMany, 32768), kHopper),
            chosen(backward(DType::kFloat32, kMany, 32764), kHopper));
  NormForwardProblem mixed = forward(DType::kBFloat16, kMany, 4096);
  mixed.weight_dtype = DType::kFloat32;
  EXPECT_GT(std::get<RowPlan>(chosen(mixed, kHopper)->plan).stack, 1);
  EXPECT_TRUE(std::holds_alternative<RingPlan>(
      chosen(forward(DType::kBFloat16, kMany, 131072), kHopper)->plan));
}

// Where the direct kernels were measured to win.
TEST(NormPlan, SmallProblemsRunDirect) {
  for (const bool center : {false, true}) {
    for (const std::int64_t cols : {8, 768, 4096, 16384}) {
      for (const std::int64_t rows : {1, 32, 64}) {
        NormForwardProblem f = forward(DType::kBFloat16, rows, cols, center);
        f.residual = f.sum = rows_at(0x40000, cols);
        f.weight_dtype = DType::kFloat32;
        EXPECT_TRUE(is_direct(f)) << describe(f);
        NormBackwardProblem b = backward(DType::kBFloat16, rows, cols, center);
        b.dsum = rows_at(0x40000, cols);
        EXPECT_TRUE(is_direct(b)) << describe(b);
      }
    }
  }
  EXPECT_TRUE(is_direct(forward(DType::kBFloat16, 1024, 768)));
  EXPECT_FALSE(is_direct(forward(DType::kBFloat16, 1025, 768)));
  EXPECT_TRUE(is_direct(forward(DType::kBFloat16, 512, 4096)));
  EXPECT_FALSE(is_direct(forward(DType::kBFloat16, 513, 4096)));
  EXPECT_TRUE(is_direct(forward(DType::kBFloat16, 128, 16384)));
  EXPECT_FALSE(is_direct(forward(DType::kBFloat16, 129, 16384)));
  EXPECT_FALSE(is_direct(forward(DType::kBFloat16, 1, 16392)));
  EXPECT_TRUE(is_direct(backward(DType::kBFloat16, 256, 4096)));
  EXPECT_FALSE(is_direct(backward(DType::kBFloat16, 257, 4096)));
  EXPECT_FALSE(is_direct(backward(DType::kBFloat16, 65, 16384)));
  EXPECT_FALSE(is_direct(backward(DType::kBFloat16, 1, 16392)));
}

TEST(NormPlan, DirectPlansTakeAlignedRowsThatNothingOverwrites) {
  EXPECT_FALSE(is_direct(forward(DType::kFloat64, 4, 1024)));
  EXPECT_FALSE(is_direct(forward(DType::kBFloat16, 4, 1023)));
  EXPECT_FALSE(is_direct(backward(DType::kFloat64, 4, 1024)));
  NormForwardProblem f = forward(DType::kBFloat16, 4, 1024);
  f.bias = reinterpret_cast<const void*>(0x50004);
  EXPECT_FALSE(is_direct(f));
  NormBackwardProblem b = backward(DType::kBFloat16, 4, 1024);
  b.dx.stride = 1028;
  EXPECT_FALSE(is_direct(b));
  // Other CTAs than the one that writes a row of dx read that row of dy.
  b = backward(DType::kBFloat16, 4, 1024);
  b.dx = b.dy;
  EXPECT_FALSE(is_direct(b));
}

TEST(NormPlan, TheRingHoldsTwoRowsOrMoreAndFitsSharedMemory) {
  std::mt19937_64& random = testing::random_engine();
  for (int round = 0; round < 400; ++round) {
    const std::int64_t cols =
        (random() % 2 ? 8 : 1) * (1 + static_cast<std::int64_t>(random() % 20000));
    const DType dtype = kDTypes[1 + random() % 3];
    NormBackwardProblem p = backward(dtype, 1000, cols, random() % 2);
    if (random() % 2) p.dsum = rows_at(0x40000, cols);
    if (random() % 2) p.weight_dtype = DType::kFloat32;
    const RingPlan* plan = chosen_ring(p, kHopper);
    if (plan == nullptr) continue;
    EXPECT_GE(plan->max_row_bytes(), cols * size_of(dtype));
    const NormBackwardShape shape = norm_backward_shape(*plan, p, kHopper);
    EXPECT_GE(shape.stages, 2) << describe(p);
    EXPECT_LE(plan->ctas * (shape.shared_bytes + ring_static_bytes(*plan, 8) + 1024),
              kHopper.shared_bytes_per_cta + 1024)
        << describe(p) << " " << name_of(*plan);
  }
}

TEST(NormPlan, WithoutTheRingThereIsTheKernelThatRunsAnywhere) {
  EXPECT_TRUE(is_plain(backward(DType::kFloat32, kMany, 1024), kAmpere));
  EXPECT_TRUE(is_plain(backward(DType::kFloat64, kMany, 1024), kHopper));
  EXPECT_TRUE(is_plain(backward(DType::kFloat32, kMany, std::int64_t{1} << 33), kHopper));
  EXPECT_TRUE(is_plain(backward(DType::kFloat32, 0, 1024), kHopper));
  EXPECT_TRUE(is_plain(backward(DType::kFloat32, kMany, 0), kHopper));
}

DropoutNormForwardProblem mixed_forward(std::int64_t cols) {
  DropoutNormForwardProblem p{};
  p.norm = forward(DType::kFloat32, kMany, cols);
  p.norm.residual = p.norm.sum = rows_at(0x40000, cols);
  p.branch_dtype = DType::kBFloat16;
  return p;
}

DropoutNormBackwardProblem mixed_backward(std::int64_t cols) {
  DropoutNormBackwardProblem p{};
  p.norm = backward(DType::kFloat32, kMany, cols);
  p.norm.dsum = rows_at(0x40000, cols);
  p.dropout.dx = rows_at(0x50000, cols);
  p.branch_dtype = DType::kBFloat16;
  return p;
}

const NormForwardPlan* chosen(const DropoutNormForwardProblem& p, const DeviceLimits& device) {
  for (const NormForwardPlan& plan : kMixedNormForwardPlans) {
    if (mixed_norm_forward_refusal(plan, p, device) == nullptr) return &plan;
  }
  return nullptr;
}

const RingPlan* chosen(const DropoutNormBackwardProblem& p, const DeviceLimits& device) {
  for (const RingPlan& plan : kMixedNormBackwardPlans) {
    if (mixed_norm_backward_refusal(plan, p, device) == nullptr) return &plan;
  }
  return nullptr;
}

TEST(MixedNormPlan, EveryPlanIsTheChoiceOfAProblemThatItHolds) {
  std::set<const void*> plans;
  for (std::int64_t cols = 4; cols <= 8192; cols += 4) {
    const DropoutNormForwardProblem f = mixed_forward(cols);
    for (const DeviceLimits& device : {kAmpere, kHopper}) {
      const NormForwardPlan* entry = chosen(f, device);
      ASSERT_NE(entry, nullptr) << describe(f);
      const RowPlan& plan = std::get<RowPlan>(entry->plan);
      EXPECT_TRUE(plan.wide && !plan.shifted);
      EXPECT_TRUE(plan.packs == 0 || plan.packs * plan.threads * 4 >= cols) << describe(f);
      EXPECT_TRUE(device.architecture >= 90 || !plan.needs_sm90());
      plans.insert(entry);
    }
    DropoutNormBackwardProblem b = mixed_backward(cols);
    EXPECT_EQ(chosen(b, kAmpere), nullptr);
    const RingPlan* ring = chosen(b, kHopper);
    EXPECT_EQ(ring != nullptr, cols <= 4096) << describe(b);
    if (ring == nullptr) continue;
    const NormBackwardShape shape = mixed_norm_backward_shape(*ring, b, kHopper);
    EXPECT_GE(shape.stages, 2) << describe(b);
    EXPECT_LE(shape.shared_bytes + ring_static_bytes(*ring, 8), kHopper.shared_bytes_per_cta);
    plans.insert(ring);
    b.norm.dsum = {};
    EXPECT_EQ(chosen(b, kHopper), ring);
  }
  EXPECT_EQ(plans.size(), std::size(kMixedNormForwardPlans) + std::size(kMixedNormBackwardPlans));
}

// The branch by four elements, all else by 16 bytes.
TEST(MixedNormPlan, RowsOfOtherAlignmentHaveNone) {
  const auto forward_without = [](auto&& spoil) {
    DropoutNormForwardProblem p = mixed_forward(768);
    spoil(p);
    return chosen(p, kHopper) == nullptr;
  };
  EXPECT_FALSE(forward_without([](auto& p) { p.norm.x = rows_at(0x10008, 772); }));
  EXPECT_TRUE(forward_without([](auto& p) { p.norm.x = rows_at(0x10004, 768); }));
  EXPECT_TRUE(forward_without([](auto& p) { p.norm.y.stride = 770; }));
  EXPECT_TRUE(forward_without([](auto& p) { p.norm.residual = rows_at(0x40008, 768); }));
  EXPECT_TRUE(forward_without([](auto& p) { p.norm.sum.stride = 770; }));
  EXPECT_TRUE(forward_without([](auto& p) { p.norm.cols = 767; }));
  EXPECT_TRUE(
      forward_without([](auto& p) { p.dropout.bias = reinterpret_cast<const void*>(0x60004); }));
  const auto backward_without = [](auto&& spoil) {
    DropoutNormBackwardProblem p = mixed_backward(768);
    spoil(p);
    return chosen(p, kHopper) == nullptr;
  };
  EXPECT_FALSE(backward_without([](auto& p) { p.norm.dy = rows_at(0x20008, 772); }));
  EXPECT_TRUE(backward_without([](auto& p) { p.norm.dy = rows_at(0x20004, 768); }));
  EXPECT_TRUE(backward_without([](auto& p) { p.dropout.dx.stride = 770; }));
  EXPECT_TRUE(backward_without([](auto& p) { p.norm.dx = rows_at(0x30008, 768); }));
  EXPECT_TRUE(backward_without([](auto& p) { p.norm.dsum.stride = 770; }));
  EXPECT_TRUE(backward_without([](auto& p) { p.norm.cols = 767; }));
}

// Kernels that no problem runs are not worth their place.
TEST(NormPlan, EveryPlanIsTheChoiceOfAProblem) {
  std::set<const NormForwardPlan*> forwards;
  std::set<const NormBackwardPlan*> backwards;
  const auto visit = [&](DType dtype, std::int64_t rows, std::int64_t cols, bool center,
                         bool residual, bool float_parameters, std::int64_t gap) {
    NormForwardProblem f = forward(dtype, rows, cols, center);
    NormBackwardProblem b = backward(dtype, rows, cols, center);
    if (residual) f.residual = f.sum = b.dsum = rows_at(0x40000, cols);
    if (float_parameters) f.weight_dtype = b.weight_dtype = DType::kFloat32;
    f.y.stride += gap;
    for (const DeviceLimits& device : {kAmpere, kHopper}) {
      forwards.insert(chosen(f, device));
      backwards.insert(chosen(b, device));
    }
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (std::int64_t bytes = 512; bytes <= 1 << 20; bytes += bytes < 32768 ? 512 : 16384) {
      for (unsigned kind = 0; kind < 32; ++kind) {
        const std::int64_t cols = bytes / size_of(dtype) - (kind >> 3 & 1);
        const std::int64_t gap = (kind >> 3 & 1) && (kind >> 4 & 1) ? 1 : 0;
        const std::int64_t rows = (kind >> 4 & 1) ? 1 : kMany;
        visit(dtype, rows, cols, kind & 1, kind >> 1 & 1, kind >> 2 & 1, gap);
      }
    }
  }
  for (const NormForwardPlan& plan : kNormForwardPlans) {
    EXPECT_TRUE(forwards.contains(&plan)) << name_of(plan);
  }
  for (const NormBackwardPlan& plan : kNormBackwardPlans) {
    EXPECT_TRUE(backwards.contains(&plan)) << name_of(plan);
  }
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

// Lanes gather what the warps bring: 32 of them, and by halves.
void expect_well_formed(const DirectPlan& plan) {
  EXPECT_EQ(plan.most_threads & (plan.most_threads - 1), 0) << name_of(plan);
  EXPECT_LE(plan.most_threads, 1024) << name_of(plan);
  EXPECT_LE(plan.most_threads * plan.min_ctas, 2048) << name_of(plan);
  EXPECT_LE(plan.min_threads, plan.most_threads) << name_of(plan);
  EXPECT_EQ(plan.min_threads % 32, 0) << name_of(plan);
}

void expect_well_formed(PlainPlan) {}

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
  for (const NormBackwardPlan& entry : kNormBackwardPlans) {
    std::visit([](const auto& plan) { expect_well_formed(plan); }, entry.plan);
  }
  EXPECT_TRUE(std::holds_alternative<PlainPlan>(std::rbegin(kNormBackwardPlans)->plan));
}

}  // namespace
}  // namespace transformer_kernels::cuda
