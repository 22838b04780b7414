// SPDX-License-Identifier: MIT
// The choice of softmax's launch plan on CUDA. Needs no GPU.
#include "softmax/plan.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>

#include "device_limits.h"
#include "numbers.h"

namespace transformer_kernels::cuda {
namespace {

constexpr DeviceLimits kDevices[] = {kAmpere, kAda, kHopper, kBlackwellDesktop};
constexpr std::int64_t kMany = 100000;  // rows: too many for a direct plan
constexpr DType kDTypes[] = {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16};

void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

SoftmaxForwardProblem forward(DType dtype, std::int64_t rows, std::int64_t cols) {
  SoftmaxForwardProblem p{};
  p.dtype = dtype;
  p.rows = rows;
  p.cols = cols;
  p.x = at(0x10000);
  p.y = at(0x20000);
  p.x_stride = p.y_stride = cols;
  return p;
}

SoftmaxBackwardProblem backward(DType dtype, std::int64_t rows, std::int64_t cols) {
  SoftmaxBackwardProblem p{};
  p.dtype = dtype;
  p.rows = rows;
  p.cols = cols;
  p.dy = at(0x10000);
  p.y = at(0x20000);
  p.dx = at(0x30000);
  p.dy_stride = p.y_stride = p.dx_stride = cols;
  return p;
}

// The first plan of the table that takes the problem; null where none does.
template <std::size_t kPlans, class Problem>
const SoftmaxPlan* chosen(const SoftmaxPlan (&plans)[kPlans], const Problem& problem,
                          const DeviceLimits& device) {
  for (const SoftmaxPlan& plan : plans) {
    if (softmax_refusal(plan, problem, device) == nullptr) return &plan;
  }
  return nullptr;
}

const SoftmaxPlan* chosen(const SoftmaxForwardProblem& p, const DeviceLimits& device) {
  return chosen(kSoftmaxForwardPlans, p, device);
}

const SoftmaxPlan* chosen(const SoftmaxBackwardProblem& p, const DeviceLimits& device) {
  return chosen(kSoftmaxBackwardPlans, p, device);
}

// The plan of a problem that no direct plan takes.
template <class Problem>
const RowPlan* chosen_row_plan(const Problem& p, const DeviceLimits& device) {
  return std::get_if<RowPlan>(&chosen(p, device)->plan);
}

template <class Problem>
bool is_direct(const Problem& p) {
  return std::holds_alternative<DirectPlan>(chosen(p, kHopper)->plan);
}

// Every element of the widest slice has a thread, and the CTA has the memory for it.
void expect_holds(const RowPlan& plan, const RowLoad& load, const DeviceLimits& device) {
  EXPECT_LE(plan.cta_threads(), 1024);
  EXPECT_LE(staged_bytes(plan, load), device.shared_bytes_per_cta);
  if (plan.packs > 0) {
    EXPECT_GE(static_cast<std::int64_t>(plan.packs) * plan.threads, slice_packs(plan, load));
  }
  if (plan.wide) {
    EXPECT_TRUE(load.aligned || (plan.shifted && load.in_step));
    EXPECT_NE(load.element_bytes, 8);
  }
  if (device.architecture < 90) {
    EXPECT_FALSE(plan.bulk);
    EXPECT_EQ(plan.cluster, 1);
  }
}

void expect_holds(const DirectPlan& plan, const RowLoad& load, const DeviceLimits&) {
  EXPECT_TRUE(load.aligned);
  EXPECT_NE(load.element_bytes, 8);
  const std::int64_t packs = load.cols * load.element_bytes / 16;
  EXPECT_GE(std::int64_t{plan.packs} * direct_threads(plan, packs), packs);
  EXPECT_LE(direct_threads(plan, packs), plan.most_threads);
}

template <class Problem>
void expect_runnable(const SoftmaxPlan* entry, const Problem& p, const DeviceLimits& device) {
  ASSERT_NE(entry, nullptr) << describe(p) << " on sm_" << device.architecture;
  std::visit([&](const auto& plan) { expect_holds(plan, row_load(p), device); }, entry->plan);
}

TEST(SoftmaxPlan, EveryProblemHasAPlanOnEveryDevice) {
  std::mt19937_64& random = testing::random_engine();
  std::uniform_int_distribution<std::int64_t> exponent(0, 23);
  for (int round = 0; round < 400; ++round) {
    const std::int64_t cols = 1 + static_cast<std::int64_t>(random() % (2ull << exponent(random)));
    const std::int64_t offset = static_cast<std::int64_t>(random() % 4) * 8;
    for (const DeviceLimits& device : kDevices) {
      for (const DType dtype : kDTypes) {
        auto f = forward(dtype, 1 + random() % 1000, cols);
        f.x = at(0x10000 + offset);
        expect_runnable(chosen(f, device), f, device);
        auto b = backward(dtype, 1 + random() % 1000, cols);
        b.dx = at(0x30000 + offset);
        expect_runnable(chosen(b, device), b, device);
      }
    }
  }
}

TEST(SoftmaxPlan, HopperStagesAlignedRowsUpToWhatAClusterHolds) {
  for (const std::int64_t cols : {8, 768, 1024, 2048, 4096, 8192, 16384, 32768, 131072, 262144}) {
    const auto p = forward(DType::kBFloat16, kMany, cols);
    EXPECT_TRUE(chosen_row_plan(p, kHopper)->bulk) << describe(p);
  }
  const auto too_wide = forward(DType::kBFloat16, 4, std::int64_t{1} << 21);
  EXPECT_FALSE(chosen_row_plan(too_wide, kHopper)->bulk);
  EXPECT_TRUE(chosen_row_plan(too_wide, kHopper)->wide);
}

TEST(SoftmaxPlan, RowBytesDecideAndNotTheDType) {
  for (const std::int64_t cols : {384, 1024, 4096, 16384, 65536}) {
    EXPECT_EQ(chosen(forward(DType::kFloat32, 99, cols), kHopper),
              chosen(forward(DType::kBFloat16, 99, 2 * cols), kHopper));
    EXPECT_EQ(chosen(backward(DType::kFloat32, 99, cols), kHopper),
              chosen(backward(DType::kFloat16, 99, 2 * cols), kHopper));
  }
}

TEST(SoftmaxPlan, WideRowsAreSharedByAClusterFromSm90On) {
  EXPECT_EQ(chosen_row_plan(forward(DType::kBFloat16, kMany, 16384), kHopper)->cluster, 1);
  EXPECT_GT(chosen_row_plan(forward(DType::kBFloat16, kMany, 131072), kHopper)->cluster, 1);
  EXPECT_GT(chosen_row_plan(backward(DType::kBFloat16, kMany, 131072), kHopper)->cluster, 1);
  EXPECT_EQ(chosen_row_plan(backward(DType::kBFloat16, kMany, 131072), kAmpere)->cluster, 1);
}

TEST(SoftmaxPlan, NarrowRowsTakeFewThreads) {
  for (const DeviceLimits& device : kDevices) {
    for (const std::int64_t cols : {8, 256, 768, 1024}) {
      EXPECT_EQ(chosen_row_plan(forward(DType::kBFloat16, kMany, cols), device)->threads, 32);
      EXPECT_EQ(chosen_row_plan(backward(DType::kBFloat16, kMany, cols), device)->threads, 32);
    }
    EXPECT_EQ(chosen_row_plan(forward(DType::kFloat64, kMany, 33), device)->threads, 32);
    EXPECT_EQ(chosen_row_plan(backward(DType::kFloat64, kMany, 33), device)->threads, 32);
  }
}

TEST(SoftmaxPlan, OneMisalignedOperandMakesEveryAccessNarrow) {
  auto f = forward(DType::kFloat32, kMany, 1024);
  f.y = at(0x20004);
  EXPECT_FALSE(chosen_row_plan(f, kHopper)->wide);
  auto stride = forward(DType::kFloat32, kMany, 1024);
  stride.x_stride = 1025;
  EXPECT_FALSE(chosen_row_plan(stride, kHopper)->wide);
  EXPECT_TRUE(chosen_row_plan(forward(DType::kFloat32, kMany, 1023), kHopper)->shifted);

  auto b = backward(DType::kBFloat16, kMany, 1024);
  b.dy = at(0x10002);
  EXPECT_FALSE(chosen_row_plan(b, kHopper)->wide);
  b = backward(DType::kBFloat16, kMany, 1024);
  b.dx_stride = 1028;
  EXPECT_FALSE(chosen_row_plan(b, kHopper)->wide);
}

TEST(SoftmaxPlan, AlignedStridesStayWide) {
  auto p = forward(DType::kBFloat16, kMany, 1024);
  p.x_stride = 4096;
  EXPECT_TRUE(chosen_row_plan(p, kHopper)->bulk);
  EXPECT_TRUE(chosen_row_plan(p, kAmpere)->wide);
}

TEST(SoftmaxPlan, TheLastRowsTakeAnything) {
  const SoftmaxPlan& last_forward = *std::rbegin(kSoftmaxForwardPlans);
  const SoftmaxPlan& last_backward = *std::rbegin(kSoftmaxBackwardPlans);
  for (const DType dtype : kDTypes) {
    for (const std::int64_t cols : {std::int64_t{1}, std::int64_t{1} << 33}) {
      EXPECT_EQ(softmax_refusal(last_forward, forward(dtype, 3, cols), kAmpere), nullptr);
      EXPECT_EQ(softmax_refusal(last_backward, backward(dtype, 3, cols), kAmpere), nullptr);
    }
  }
}

// Where the direct kernels were measured to win.
TEST(SoftmaxPlan, SmallProblemsRunDirect) {
  for (const std::int64_t cols : {8, 768, 4096, 16384}) {
    for (const std::int64_t rows : {1, 32, 256}) {
      EXPECT_TRUE(is_direct(forward(DType::kBFloat16, rows, cols))) << rows << "x" << cols;
      EXPECT_TRUE(is_direct(backward(DType::kBFloat16, rows, cols))) << rows << "x" << cols;
    }
  }
  EXPECT_TRUE(is_direct(forward(DType::kBFloat16, 2048, 4096)));
  EXPECT_FALSE(is_direct(forward(DType::kBFloat16, 2049, 4096)));
  EXPECT_TRUE(is_direct(forward(DType::kBFloat16, 512, 16384)));
  EXPECT_FALSE(is_direct(forward(DType::kBFloat16, 513, 16384)));
  EXPECT_FALSE(is_direct(forward(DType::kBFloat16, 1, 16392)));
  EXPECT_TRUE(is_direct(backward(DType::kBFloat16, 4096, 768)));
  EXPECT_FALSE(is_direct(backward(DType::kBFloat16, 4097, 768)));
  EXPECT_TRUE(is_direct(backward(DType::kBFloat16, 1024, 16384)));
  EXPECT_FALSE(is_direct(backward(DType::kBFloat16, 1025, 16384)));
  EXPECT_FALSE(is_direct(backward(DType::kBFloat16, 1, 16392)));
}

TEST(SoftmaxPlan, DirectPlansTakeAlignedRowsWithoutAMask) {
  EXPECT_FALSE(is_direct(forward(DType::kFloat64, 4, 1024)));
  EXPECT_FALSE(is_direct(forward(DType::kBFloat16, 4, 1023)));
  auto f = forward(DType::kBFloat16, 4, 1024);
  f.causal_rows = 4;
  EXPECT_FALSE(is_direct(f));
  auto b = backward(DType::kBFloat16, 4, 1024);
  b.dx = const_cast<void*>(b.dy);
  EXPECT_TRUE(is_direct(b));
  b.masked = true;
  EXPECT_FALSE(is_direct(b));
  b = backward(DType::kBFloat16, 4, 1024);
  b.dx_stride = 1028;
  EXPECT_FALSE(is_direct(b));
}

// Registers: what launch bounds promise must fit 64 K registers of 32 bits and 2048 threads an SM.
void expect_well_formed(const RowPlan& plan) {
  EXPECT_EQ(plan.threads & (plan.threads - 1), 0) << name_of(plan);
  EXPECT_EQ(plan.cluster & (plan.cluster - 1), 0) << name_of(plan);
  EXPECT_GE(plan.threads, 32) << name_of(plan);
  EXPECT_LE(plan.cta_threads() * plan.min_ctas, 2048) << name_of(plan);
  EXPECT_LE(plan.cluster, 16) << name_of(plan);
  EXPECT_TRUE(plan.rows == 1 || plan.cluster == 1) << name_of(plan);
  EXPECT_TRUE(plan.threads == 32 || plan.rows < 16) << name_of(plan);
  EXPECT_TRUE(!plan.bulk || plan.wide) << name_of(plan);
}

// Lanes gather what the warps bring: 32 of them, and by halves.
void expect_well_formed(const DirectPlan& plan) {
  EXPECT_EQ(plan.most_threads & (plan.most_threads - 1), 0) << name_of(plan);
  EXPECT_GE(plan.most_threads, 32) << name_of(plan);
  EXPECT_LE(plan.most_threads, 1024) << name_of(plan);
  EXPECT_LE(plan.most_threads * plan.min_ctas, 2048) << name_of(plan);
}

template <std::size_t kPlans>
void expect_well_formed(const SoftmaxPlan (&plans)[kPlans]) {
  for (const SoftmaxPlan& entry : plans) {
    std::visit([](const auto& plan) { expect_well_formed(plan); }, entry.plan);
  }
}

TEST(SoftmaxPlan, PlansAreWellFormed) {
  expect_well_formed(kSoftmaxForwardPlans);
  expect_well_formed(kSoftmaxBackwardPlans);
}

}  // namespace
}  // namespace transformer_kernels::cuda
