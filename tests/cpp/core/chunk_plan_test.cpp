// SPDX-License-Identifier: MIT
// The choice of a plan for narrow rows that are not 16-byte aligned. Needs no GPU.
#include "core/cuda/chunk_plan.h"

#include <gtest/gtest.h>

#include <iterator>
#include <set>

#include "device_limits.h"
#include "norm/chunk/plan.h"
#include "softmax/chunk/plan.h"

namespace transformer_kernels::cuda {
namespace {

constexpr std::int64_t kRows = 65536;

void* at(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

SoftmaxForwardProblem softmax_forward(DType dtype, std::int64_t rows, std::int64_t cols) {
  SoftmaxForwardProblem p{};
  p.dtype = dtype;
  p.rows = rows;
  p.cols = p.x_stride = p.y_stride = cols;
  p.x = at(0x10000);
  p.y = at(0x20000);
  p.scale = 1;
  return p;
}

SoftmaxBackwardProblem softmax_backward(DType dtype, std::int64_t rows, std::int64_t cols) {
  SoftmaxBackwardProblem p{};
  p.dtype = dtype;
  p.rows = rows;
  p.cols = p.y_stride = p.dy_stride = p.dx_stride = cols;
  p.y = at(0x10000);
  p.dy = at(0x20000);
  p.dx = at(0x30000);
  p.scale = 1;
  return p;
}

NormForwardProblem norm_forward(DType dtype, std::int64_t rows, std::int64_t cols, bool center) {
  NormForwardProblem p{};
  p.center = center;
  p.dtype = p.weight_dtype = dtype;
  p.rows = rows;
  p.cols = cols;
  p.x = {at(0x10000), cols};
  p.y = {at(0x20000), cols};
  return p;
}

NormBackwardProblem norm_backward(DType dtype, std::int64_t rows, std::int64_t cols, bool center) {
  NormBackwardProblem p{};
  p.center = center;
  p.dtype = p.weight_dtype = dtype;
  p.rows = rows;
  p.cols = cols;
  p.x = {at(0x10000), cols};
  p.dy = {at(0x20000), cols};
  p.dx = {at(0x30000), cols};
  return p;
}

template <class Table, class Problem>
const ChunkPlan* first_of(const Table& table, const Problem& p, const DeviceLimits& device) {
  for (const auto& row : table) {
    if (chunk_refusal(row, p, device) == nullptr) return &plan_of(row);
  }
  return nullptr;
}

const ChunkPlan* chosen(const SoftmaxForwardProblem& p, const DeviceLimits& device = kHopper) {
  return first_of(kSoftmaxForwardChunks, p, device);
}
const ChunkPlan* chosen(const SoftmaxBackwardProblem& p, const DeviceLimits& device = kHopper) {
  return first_of(kSoftmaxBackwardChunks, p, device);
}
const ChunkPlan* chosen(const NormForwardProblem& p, const DeviceLimits& device = kHopper) {
  return first_of(kNormForwardChunks, p, device);
}
const ChunkPlan* chosen(const NormBackwardProblem& p, const DeviceLimits& device = kHopper) {
  return first_of(kNormBackwardChunks, p, device);
}

// The window of 16-byte packs that a group lays over its row: all of the row, the first pack in a
// lane's first slot, the last one in a last slot, and whole packs of the row in between.
void expect_covers(const ChunkPlan& plan, std::int64_t row_bytes) {
  const std::int64_t window =
      std::max<std::int64_t>(packs_of_row(row_bytes), plan.lanes * (plan.packs - 1) + 1);
  EXPECT_LE(window, plan.most_packs());
  for (int group = 0; group < plan.groups(); ++group) {
    const std::int64_t begin = group * row_bytes;
    const std::int64_t last = (begin + row_bytes - 1) / 16;
    const std::int64_t before = begin / 16 - (last - window + 1);  // packs of the window
    EXPECT_GE(before, 0) << name_of(plan) << " " << row_bytes;
    EXPECT_LT(before, plan.lanes) << name_of(plan) << " " << row_bytes;
    EXPECT_GE(window - 1, plan.lanes * (plan.packs - 1)) << name_of(plan) << " " << row_bytes;
  }
}

template <class Problem>
void expect_runnable(const ChunkPlan& plan, const Problem& problem) {
  const ChunkLoad load = chunk_load(problem);
  const ChunkShape shape = chunk_shape(plan, load);
  expect_covers(plan, load.row_bytes());
  EXPECT_EQ(shape.chunk_bytes % 16, 0);
  EXPECT_EQ(shape.chunk_bytes, shape.rounds * plan.groups() * load.row_bytes());
  EXPECT_EQ(shape.table_bytes % 16, 0);
  EXPECT_LE(shape.shared_bytes + 256, kHopper.shared_bytes_per_cta);
  EXPECT_GE(chunk_grid(plan, shape, load, kHopper), 1);
}

// Widths between whose plans there is a gap: more than a lane's registers hold, or two packs more
// than one plan takes and one less than the next.
bool is_in_a_gap(std::int64_t row_bytes) {
  const std::set<std::int64_t> gaps = {193, 194, 257};
  return gaps.contains(packs_of_row(row_bytes));
}

TEST(ChunkPlan, TakesEveryWidthThatIsNotAligned) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (std::int64_t cols = 17; cols <= 1023; ++cols) {
      const std::int64_t row_bytes = cols * size_of(dtype);
      const auto expect = [&](const auto& problem) {
        const ChunkPlan* plan = chosen(problem);
        const bool wanted = row_bytes % 16 != 0 && !is_in_a_gap(row_bytes);
        ASSERT_EQ(plan != nullptr, wanted) << describe(problem);
        if (plan) expect_runnable(*plan, problem);
      };
      expect(softmax_forward(dtype, kRows, cols));
      expect(softmax_backward(dtype, kRows, cols));
      for (const bool center : {false, true}) {
        expect(norm_forward(dtype, kRows, cols, center));
        expect(norm_backward(dtype, kRows, cols, center));
      }
    }
  }
}

TEST(ChunkPlan, LeavesToOthersWhatItIsNotMeantFor) {
  const auto problem = [] { return softmax_forward(DType::kBFloat16, kRows, 197); };
  EXPECT_NE(chosen(problem()), nullptr);
  EXPECT_EQ(chosen(problem(), kAmpere), nullptr);
  EXPECT_EQ(chosen(softmax_forward(DType::kBFloat16, 1999, 197)), nullptr);
  EXPECT_EQ(chosen(softmax_forward(DType::kFloat64, kRows, 197)), nullptr);
  EXPECT_EQ(chosen(softmax_forward(DType::kBFloat16, kRows, 200)), nullptr);
  EXPECT_EQ(chosen(softmax_forward(DType::kBFloat16, kRows, 3)), nullptr);
  EXPECT_EQ(chosen(softmax_forward(DType::kBFloat16, kRows, 5003)), nullptr);
  EXPECT_EQ(chosen(softmax_forward(DType::kBFloat16, std::int64_t{1} << 30, 197)), nullptr);
  auto p = problem();
  p.x = at(0x10002);
  EXPECT_EQ(chosen(p), nullptr);
  p = problem();
  p.y_stride = 208;
  EXPECT_EQ(chosen(p), nullptr);
  p = problem();
  p.scale = 0;
  EXPECT_EQ(chosen(p), nullptr);
  p = problem();
  p.causal_rows = 64;
  EXPECT_EQ(chosen(p), nullptr);
  NormForwardProblem f = norm_forward(DType::kBFloat16, kRows, 197, true);
  f.residual = f.x;
  EXPECT_EQ(chosen(f), nullptr);
  NormBackwardProblem b = norm_backward(DType::kBFloat16, kRows, 197, false);
  b.dbias = at(0x40000);
  EXPECT_EQ(chosen(b), nullptr);
  b.center = true;
  EXPECT_NE(chosen(b), nullptr);
  b.dsum = b.dy;
  EXPECT_EQ(chosen(b), nullptr);
}

TEST(ChunkPlan, FewerRowsThanChunksTakeFewerCtas) {
  const auto p = softmax_forward(DType::kBFloat16, 2001, 1001);
  const ChunkPlan& plan = *chosen(p);
  const ChunkLoad load = chunk_load(p);
  const ChunkShape shape = chunk_shape(plan, load);
  EXPECT_EQ(shape.rounds, 1);
  EXPECT_EQ(chunk_grid(plan, shape, load, kHopper), (2001 + plan.groups() - 1) / plan.groups());
}

void expect_well_formed(const ChunkPlan& plan) {
  EXPECT_EQ(plan.lanes & (plan.lanes - 1), 0) << name_of(plan);
  EXPECT_LE(plan.lanes, 32) << name_of(plan);
  EXPECT_GE(plan.packs, 2) << name_of(plan);
  EXPECT_EQ(plan.groups() % 8, 0) << name_of(plan);
  EXPECT_EQ(plan.threads % 32, 0) << name_of(plan);
  EXPECT_LE(plan.teams, 15) << name_of(plan);
  EXPECT_LE(plan.cta_threads() * plan.ctas, 2048) << name_of(plan);
}

TEST(ChunkPlan, PlansAreWellFormed) {
  for (const ChunkPlan& plan : kSoftmaxForwardChunks) expect_well_formed(plan);
  for (const ChunkPlan& plan : kSoftmaxBackwardChunks) expect_well_formed(plan);
  for (const ChunkPlan& plan : kNormForwardChunks) expect_well_formed(plan);
  for (const NormBackwardChunkPlan& entry : kNormBackwardChunks) expect_well_formed(entry.plan);
}

}  // namespace
}  // namespace transformer_kernels::cuda
