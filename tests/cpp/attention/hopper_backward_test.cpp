// SPDX-License-Identifier: MIT
// What the backward pass on Hopper takes, and why not the rest. Needs no GPU.
#ifdef TFK_WITH_CUDA

#include "attention/hopper_backward.h"

#include <gtest/gtest.h>

#include <string>

#include "device_limits.h"

namespace transformer_kernels::cuda {
namespace {

AttentionBackwardProblem problem(std::int64_t dim) {
  constexpr std::int64_t kRows = 1000, kHeads = 4;
  AttentionBackwardProblem p{};
  p.dtype = DType::kBFloat16;
  p.batch = 2;
  p.heads = p.kv_heads = kHeads;
  p.queries = p.keys = kRows;
  p.dim = p.value_dim = dim;
  p.q = p.k = p.v = p.out = p.dout = p.dq = p.dk =
      p.dv = {reinterpret_cast<void*>(0x10000), kRows * kHeads * dim, kHeads * dim, dim};
  p.scale = 0.125;
  p.window_left = p.window_right = -1;
  return p;
}

constexpr const char* kUnaligned = "wants a mask in aligned eights of keys";

ScoreMap bias_of(DType dtype) { return {reinterpret_cast<void*>(0x10000), dtype, 0, 0, 1000, 1}; }
ScoreMap aligned_mask() { return {reinterpret_cast<void*>(0x10000), DType::kBool, 0, 0, 1000, 1}; }

std::string refusal(const AttentionBackwardProblem& p, const DeviceLimits& device = kHopper) {
  const char* const reason = kHopperBackward.refusal(p, device);
  return reason == nullptr ? "" : reason;
}

TEST(HopperBackward, TakesAllMultiplesOfEightUpToTheMost) {
  for (std::int64_t dim = 8; dim <= kMostDim; dim += 8) EXPECT_EQ(refusal(problem(dim)), "") << dim;
  for (const std::int64_t dim : {4, 60, 130, 252}) {
    EXPECT_EQ(refusal(problem(dim)), "wants a dim that is a multiple of 8");
  }
}

TEST(HopperBackward, TakesWindowsAndGroupsAtEveryDim) {
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    AttentionBackwardProblem p = problem(dim);
    p.window_left = 70;
    p.window_right = 0;
    p.kv_heads = 2;
    p.deterministic = true;
    EXPECT_EQ(refusal(p), "") << dim;
  }
}

TEST(HopperBackward, TakesPackedSequencesAndFeaturesUpToTheDimOfACta) {
  const std::int32_t offsets[] = {0, 300, 1000};
  for (const std::int64_t dim : {8, 64, 96, 128}) {
    AttentionBackwardProblem p = problem(dim);
    p.q_offsets = p.k_offsets = offsets;
    EXPECT_EQ(refusal(p), "") << dim;
    p = problem(dim);
    p.scale = -1;
    EXPECT_EQ(refusal(p), "") << dim;
    p.softcap = 30;
    p.drop_below = 1;
    p.mask = aligned_mask();
    EXPECT_EQ(refusal(p), "") << dim;
  }
}

TEST(HopperBackward, TakesBiasesInAnyRows) {
  for (const std::int64_t dim : {64, 128}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      AttentionBackwardProblem p = problem(dim);
      p.bias = bias_of(dtype);
      p.mask = aligned_mask();
      EXPECT_EQ(refusal(p), "");
      p.bias.row_stride = 1001;
      EXPECT_EQ(refusal(p), "");
      p.bias.row_stride = p.bias.col_stride = 0;
      EXPECT_EQ(refusal(p), "");
    }
  }
}

TEST(HopperBackward, HasNoRoomForWideBiasesBesideOtherWeights) {
  constexpr const char* kNoRoom =
      "has no room for a float32 bias beside softcap or dropout above 64 columns";
  for (const std::int64_t dim : {64, 72, 128}) {
    AttentionBackwardProblem p = problem(dim);
    p.drop_below = 1;
    p.bias = bias_of(DType::kFloat32);
    EXPECT_EQ(refusal(p), dim > 64 ? kNoRoom : "") << dim;
    p.drop_below = 0;
    p.softcap = 30;
    EXPECT_EQ(refusal(p), dim > 64 ? kNoRoom : "") << dim;
    p.bias = bias_of(DType::kBFloat16);
    EXPECT_EQ(refusal(p), "") << dim;
  }
}

TEST(HopperBackward, TakesGradientsOfSinksAtEveryDim) {
  float number = 1;
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    AttentionBackwardProblem p = problem(dim);
    p.sinks = {&number, 0, 0};
    p.dsinks = &number;
    EXPECT_EQ(refusal(p), "") << dim;
  }
}

TEST(HopperBackward, LoadsMasksInEights) {
  AttentionBackwardProblem p = problem(64);
  p.mask = aligned_mask();
  EXPECT_EQ(refusal(p), "");
  p.mask.row_stride = 1004;
  EXPECT_EQ(refusal(p), kUnaligned);
  p.mask = aligned_mask();
  p.mask.col_stride = 0;
  EXPECT_EQ(refusal(p), kUnaligned);
  p.mask = aligned_mask();
  p.mask.data = reinterpret_cast<void*>(0x10004);
  EXPECT_EQ(refusal(p), kUnaligned);
  p = problem(64);
  p.keys = 996;
  p.mask = aligned_mask();
  EXPECT_EQ(refusal(p), kUnaligned);
}

TEST(HopperBackward, SaysWhatItDoesNotTake) {
  EXPECT_EQ(refusal(problem(256), {.architecture = 100}), "runs on compute capability 9.0 only");
  AttentionBackwardProblem p = problem(256);
  p.dtype = DType::kFloat32;
  EXPECT_EQ(refusal(p), "takes float16 and bfloat16 only");
  p = problem(256);
  p.value_dim = 128;
  EXPECT_EQ(refusal(p), "wants v of the dim of q");
  p = problem(256);
  p.softcap = 30;
  EXPECT_EQ(refusal(p), "knows no softcap, bias, mask, slopes or dropout above 128 columns");
  p = problem(136);
  p.drop_below = 1;
  EXPECT_EQ(refusal(p), "knows no softcap, bias, mask, slopes or dropout above 128 columns");
  p = problem(256);
  p.scale = -1;
  EXPECT_EQ(refusal(p), "wants a scale above 0 above 128 columns");
  p = problem(192);
  const std::int32_t offsets[] = {0, 300, 1000};
  p.q_offsets = p.k_offsets = offsets;
  EXPECT_EQ(refusal(p), "knows no sequences of different lengths above 128 columns");
  p = problem(64);
  p.dbias = {reinterpret_cast<void*>(0x10000), DType::kFloat32, 0, 0, 1000, 1};
  EXPECT_EQ(refusal(p), "gives no gradient of bias");
  p = problem(256);
  p.dk.row_stride += 4;
  EXPECT_EQ(refusal(p), "wants addresses and strides in steps of 16 bytes");
}

}  // namespace
}  // namespace transformer_kernels::cuda

#endif
