// SPDX-License-Identifier: MIT
// The problems that the backward pass on Hopper takes, and its reasons to refuse others. Needs no
// GPU.
#if TFK_CUDA_SM90A

#include "attention/sm90/backward/engine.h"

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

ScoreMap bias_of(DType dtype) { return {reinterpret_cast<void*>(0x10000), dtype, 0, 0, 1000, 1}; }
ScoreMap aligned_mask() { return {reinterpret_cast<void*>(0x10000), DType::kBool, 0, 0, 1000, 1}; }

// The kernel that runs it, or nothing.
std::string chosen(const AttentionBackwardProblem& p) {
  for (const auto& engine : kHopperBackwardEngines) {
    if (engine.refusal(p, kHopper) == nullptr) return engine.name;
  }
  return "";
}

// Whether nobody takes it, and the kernel of this name for this reason.
bool is_refused(const AttentionBackwardProblem& p, const std::string& name,
                const std::string& reason, const DeviceLimits& device = kHopper) {
  bool found = false;
  for (const auto& engine : kHopperBackwardEngines) {
    const char* const said = engine.refusal(p, device);
    if (said == nullptr) return false;
    if (engine.name == name) found = said == reason;
  }
  return found;
}

TEST(HopperBackward, TakesAllMultiplesOfEightUpToTheMost) {
  for (std::int64_t dim = 8; dim <= kMostDim; dim += 8) {
    const std::int64_t columns = (dim + 63) / 64 * 64;
    EXPECT_EQ(chosen(problem(dim)), "hopper_backward_" + std::to_string(columns));
  }
  for (const std::int64_t dim : {4, 60, 130, 252}) {
    EXPECT_TRUE(
        is_refused(problem(dim), "hopper_backward_64", "wants dims that are multiples of 8"));
  }
}

TEST(HopperBackward, TakesValuesOfAnotherDim) {
  AttentionBackwardProblem p = problem(192);
  p.value_dim = 128;
  EXPECT_EQ(chosen(p), "hopper_backward_192");
  p = problem(64);
  p.value_dim = 128;
  EXPECT_EQ(chosen(p), "hopper_backward_128");
  p.value_dim = 60;
  EXPECT_TRUE(is_refused(p, "hopper_backward_64", "wants dims that are multiples of 8"));
}

TEST(HopperBackward, TakesWindowsAndGroupsAtEveryDim) {
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    AttentionBackwardProblem p = problem(dim);
    p.window_left = 70;
    p.window_right = 0;
    p.kv_heads = 2;
    const std::string name = "hopper_backward_" + std::to_string(dim);
    EXPECT_EQ(chosen(p), name);
    p.deterministic = true;
    EXPECT_EQ(chosen(p), dim <= 128 ? name : name + "_ordered");
  }
}

TEST(HopperBackward, TakesPackedSequencesAndFeaturesAtEveryDim) {
  const std::int32_t offsets[] = {0, 300, 1000};
  for (const std::int64_t dim : {8, 64, 96, 128, 136, 256}) {
    const std::string name = "hopper_backward_" + std::to_string((dim + 63) / 64 * 64);
    const bool pair = dim > 128;
    AttentionBackwardProblem p = problem(dim);
    p.q_offsets = p.k_offsets = offsets;
    EXPECT_EQ(chosen(p), name + "_packed");
    p.deterministic = true;
    EXPECT_EQ(chosen(p), name + "_packed");
    p.mask = aligned_mask();
    EXPECT_EQ(chosen(p), name + (pair ? "_weights" : "_scores"));
    p = problem(dim);
    p.scale = -1;
    EXPECT_EQ(chosen(p), name + (pair ? "_packed" : ""));
    p.softcap = 30;
    EXPECT_EQ(chosen(p), name + "_weights");
    p.drop_below = 1;
    p.mask = aligned_mask();
    EXPECT_EQ(chosen(p), name + "_weights");
  }
}

TEST(HopperBackward, HasAKernelForDropoutAlone) {
  for (const std::int64_t dim : {64, 128, 256}) {
    const std::string name = "hopper_backward_" + std::to_string(dim);
    const std::string expected = name + (dim > 128 ? "_weights" : "_dropout");
    AttentionBackwardProblem p = problem(dim);
    p.drop_below = 1;
    EXPECT_EQ(chosen(p), expected);
    p.deterministic = true;
    EXPECT_EQ(chosen(p), expected);
    p.softcap = 30;
    EXPECT_EQ(chosen(p), name + "_weights");
    p.softcap = 0;
    p.mask = aligned_mask();
    EXPECT_EQ(chosen(p), name + "_weights");
  }
}

TEST(HopperBackward, TakesBiasesInAnyRows) {
  for (const std::int64_t dim : {64, 128}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      AttentionBackwardProblem p = problem(dim);
      p.bias = bias_of(dtype);
      p.mask = aligned_mask();
      EXPECT_NE(chosen(p), "");
      p.bias.row_stride = 1001;
      EXPECT_NE(chosen(p), "");
      p.bias.row_stride = p.bias.col_stride = 0;
      EXPECT_NE(chosen(p), "");
    }
  }
}

TEST(HopperBackward, TakesGradientsOfBiases) {
  AttentionBackwardProblem p = problem(128);
  p.bias = p.dbias = bias_of(DType::kFloat32);
  EXPECT_EQ(chosen(p), "hopper_backward_128_scores");
  p.dbias.row_stride = 0;
  EXPECT_EQ(chosen(p), "hopper_backward_128_scores");
}

TEST(HopperBackward, HasNoRoomForWideBiasesBesideOtherWeights) {
  constexpr const char* kNoRoom =
      "has no room for a float32 bias beside softcap or dropout above 64 columns";
  for (const std::int64_t dim : {64, 72, 128}) {
    AttentionBackwardProblem p = problem(dim);
    p.bias = bias_of(DType::kFloat32);
    for (const bool drops : {false, true}) {
      p.drop_below = drops ? 1 : 0;
      p.softcap = drops ? 0 : 30;
      EXPECT_EQ(is_refused(p, "hopper_backward_128_weights", kNoRoom), dim > 64) << dim;
    }
    p.bias = bias_of(DType::kBFloat16);
    EXPECT_NE(chosen(p), "") << dim;
  }
}

TEST(HopperBackward, TakesGradientsOfSinksAtEveryDim) {
  float number = 1;
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    AttentionBackwardProblem p = problem(dim);
    p.sinks = {&number, 0, 0};
    p.dsinks = &number;
    EXPECT_NE(chosen(p), "") << dim;
  }
}

TEST(HopperBackward, LoadsMasksInEights) {
  AttentionBackwardProblem p = problem(64);
  p.mask = aligned_mask();
  EXPECT_EQ(chosen(p), "hopper_backward_64_scores");
  const auto expect_refusal = [&] {
    EXPECT_TRUE(
        is_refused(p, "hopper_backward_64_scores", "wants a mask in aligned eights of keys"));
  };
  p.mask.row_stride = 1004;
  expect_refusal();
  p.mask = aligned_mask();
  p.mask.col_stride = 0;
  expect_refusal();
  p.mask = aligned_mask();
  p.mask.data = reinterpret_cast<void*>(0x10004);
  expect_refusal();
  p.mask = aligned_mask();
  p.keys = 996;
  expect_refusal();
}

TEST(HopperBackward, SaysWhatItDoesNotTake) {
  EXPECT_TRUE(is_refused(problem(256), "hopper_backward_256", "runs on compute capability 9.0 only",
                         {.architecture = 100}));
  const auto expect_refusal = [](const AttentionBackwardProblem& p, const char* reason) {
    EXPECT_TRUE(is_refused(p, "hopper_backward_256_weights", reason)) << reason;
  };
  AttentionBackwardProblem p = problem(256);
  p.dtype = DType::kFloat32;
  expect_refusal(p, "takes float16 and bfloat16 only");
  p = problem(256);
  p.value_dim = 100;
  expect_refusal(p, "wants dims that are multiples of 8");
  p = problem(256);
  p.bias = bias_of(DType::kBFloat16);
  expect_refusal(p, "has no room for a bias above 128 columns");
  p = problem(256);
  p.dk.row_stride += 4;
  expect_refusal(p, "wants addresses and strides in steps of 16 bytes");
  EXPECT_TRUE(is_refused(p, "hopper_backward_64", "is for another dim"));
}

TEST(HopperBackward, PrefersWhatKnowsLess) {
  AttentionBackwardProblem p = problem(256);
  p.scale = -1;
  EXPECT_EQ(chosen(p), "hopper_backward_256_packed");
  const auto said = [&](const std::string& name) {
    for (const auto& engine : kHopperBackwardEngines) {
      if (engine.name == name) return std::string(engine.refusal(p, kHopper));
    }
    return std::string();
  };
  EXPECT_EQ(said("hopper_backward_256"), "wants a scale above 0");
  p.softcap = 30;
  EXPECT_EQ(said("hopper_backward_256_packed"), "knows no softcap and no dropout");
  p = problem(128);
  p.mask = aligned_mask();
  EXPECT_EQ(said("hopper_backward_128_packed"), "knows no bias, mask or slopes");
  p = problem(192);
  p.deterministic = true;
  EXPECT_EQ(said("hopper_backward_192"), "adds to dq in any order");
  const std::int32_t offsets[] = {0, 300, 1000};
  p.q_offsets = p.k_offsets = offsets;
  EXPECT_EQ(said("hopper_backward_192_ordered"), "knows no sequences of different lengths");
}

}  // namespace
}  // namespace transformer_kernels::cuda

#endif
