// SPDX-License-Identifier: MIT
// The choice of Hopper's forward plan for a problem. Needs no GPU.
#if TFK_CUDA_SM90A

#include "attention/sm90/forward/engine.h"

#include <gtest/gtest.h>

#include <string>

#include "device_limits.h"

namespace transformer_kernels::cuda {
namespace {

HeadRows rows(std::int64_t length, std::int64_t heads, std::int64_t dim) {
  return {reinterpret_cast<void*>(0x10000), length * heads * dim, heads * dim, dim};
}

AttentionForwardProblem problem(std::int64_t dim, std::int64_t keys = 1000) {
  AttentionForwardProblem p{};
  p.dtype = DType::kBFloat16;
  p.batch = 2;
  p.heads = p.kv_heads = 4;
  p.queries = p.keys = keys;
  p.dim = p.value_dim = dim;
  p.q = p.k = p.v = p.out = rows(keys, 4, dim);
  p.scale = 0.125;
  p.window_left = p.window_right = -1;
  return p;
}

AttentionForwardProblem causal(AttentionForwardProblem p) {
  p.window_right = 0;
  return p;
}

std::string chosen(const AttentionForwardProblem& p) {
  for (const auto& engine : kHopperForwardEngines) {
    if (engine.refusal(p, kHopper) == nullptr) return engine.name;
  }
  return "";
}

// The refusal of the last plan, which takes the most problems.
std::string refusal(const AttentionForwardProblem& p, const DeviceLimits& device = kHopper) {
  const char* const reason = kHopperForwardEngines.back().refusal(p, device);
  return reason == nullptr ? "" : reason;
}

TEST(HopperForward, TakesTheSmallestPlanThatHoldsBothDims) {
  EXPECT_EQ(chosen(problem(8)), "hopper_forward_64");
  EXPECT_EQ(chosen(problem(64)), "hopper_forward_64");
  EXPECT_EQ(chosen(problem(72)), "hopper_forward_96");
  EXPECT_EQ(chosen(problem(104)), "hopper_forward_128");
  EXPECT_EQ(chosen(problem(136)), "hopper_forward_192");
  EXPECT_EQ(chosen(problem(256)), "hopper_forward_256");
  AttentionForwardProblem wide = problem(64);
  wide.value_dim = 128;
  wide.v = wide.out = rows(1000, 4, 128);
  EXPECT_EQ(chosen(wide), "hopper_forward_128");
}

TEST(HopperForward, NamesSayTheBlockSizes) {
  EXPECT_EQ(name_of(&kHopperForwardEngines.front()), "hopper_forward_64 192x128");
  EXPECT_EQ(name_of(&kHopperForwardEngines.back()), "hopper_forward_256_extras 128x64");
}

TEST(HopperForward, LongSequencesHaveAPlanOfTheirOwn) {
  EXPECT_EQ(chosen(problem(128, 2047)), "hopper_forward_128");
  EXPECT_EQ(chosen(problem(128, 2048)), "hopper_forward_128_long");
  EXPECT_EQ(chosen(causal(problem(128, 2047))), "hopper_forward_128");
  EXPECT_EQ(chosen(causal(problem(128, 2048))), "hopper_forward_128_long");
  float slope = 1;
  for (const auto& [keys, name] : {std::pair{2047, "hopper_forward_128_alibi"},
                                   std::pair{2048, "hopper_forward_128_alibi_long"}}) {
    AttentionForwardProblem p = causal(problem(128, keys));
    p.slopes = {&slope, 0, 0};
    EXPECT_EQ(chosen(p), name);
  }
}

TEST(HopperForward, WhatIsMoreThanAScaleHasPlansOfItsOwn) {
  AttentionForwardProblem p = problem(96);
  for (const double scale : {-1.0, 0.0, 1e-31}) {
    p.scale = scale;
    EXPECT_EQ(chosen(p), "hopper_forward_128_extras");
  }
  p = problem(200);
  float slope = 1;
  p.slopes = {&slope, 0, 0};
  EXPECT_EQ(chosen(p), "hopper_forward_256_extras");
}

TEST(HopperForward, OneFeatureAloneHasAPlanForIt) {
  float slope = 1;
  const ScoreMap map{reinterpret_cast<void*>(0x10000), DType::kBFloat16, 0, 0, 1000, 1};
  AttentionForwardProblem p = problem(64);
  p.softcap = 30;
  EXPECT_EQ(chosen(p), "hopper_forward_64_softcap");
  EXPECT_EQ(chosen(causal(p)), "hopper_forward_64_softcap");
  p.slopes = {&slope, 0, 0};
  EXPECT_EQ(chosen(p), "hopper_forward_64_extras");
  p.softcap = 0;
  EXPECT_EQ(chosen(p), "hopper_forward_64_alibi");
  p = problem(72);
  p.drop_below = 1;
  EXPECT_EQ(chosen(p), "hopper_forward_128_dropout");
  p = problem(128);
  p.bias = map;
  EXPECT_EQ(chosen(p), "hopper_forward_128_bias");
  p.scale = -1;
  EXPECT_EQ(chosen(p), "hopper_forward_128_extras");
  p = problem(128);
  p.mask = map;
  p.mask.dtype = DType::kBool;
  EXPECT_EQ(chosen(p), "hopper_forward_128_mask");
}

TEST(HopperForward, LoadsBiasAndMaskInPairs) {
  constexpr const char* kUnaligned = "bias or mask is not in aligned pairs";
  AttentionForwardProblem p = problem(64);
  p.bias = {reinterpret_cast<void*>(0x10004), DType::kBFloat16, 0, 0, 1000, 1};
  EXPECT_EQ(refusal(p), "");
  p.bias.row_stride = 1001;
  EXPECT_EQ(refusal(p), kUnaligned);
  p.bias = {reinterpret_cast<void*>(0x10004), DType::kFloat32, 0, 0, 1000, 1};
  EXPECT_EQ(refusal(p), kUnaligned);
  p = problem(64);
  p.mask = {reinterpret_cast<void*>(0x10002), DType::kBool, 1000, 0, 0, 1};
  EXPECT_EQ(refusal(p), "");
  p.mask.col_stride = 0;
  EXPECT_EQ(refusal(p), "");
  p = problem(64, 999);
  p.mask = {reinterpret_cast<void*>(0x10002), DType::kBool, 0, 0, 1000, 1};
  EXPECT_EQ(refusal(p), kUnaligned);
}

TEST(HopperForward, SaysWhatItDoesNotTake) {
  EXPECT_EQ(refusal(problem(64)), "");
  EXPECT_EQ(refusal(problem(64), {.architecture = 100}), "needs sm_90");
  AttentionForwardProblem p = problem(64);
  p.dtype = DType::kFloat32;
  EXPECT_EQ(refusal(p), "takes 16-bit dtypes");
  EXPECT_EQ(refusal(problem(60)), "dim is no multiple of 8");
  p = problem(64);
  p.k.row_stride = 252;
  EXPECT_EQ(refusal(p), "rows are not 16-byte aligned");
  p = problem(64);
  p.out.data = reinterpret_cast<void*>(8);
  EXPECT_EQ(refusal(p), "rows are not 16-byte aligned");
  p = problem(64);
  p.keys = std::int64_t{1} << 30;
  EXPECT_EQ(refusal(p), "more than 2^29 rows");
  p = problem(64);
  p.softcap = 30;
  EXPECT_STREQ(kHopperForwardEngines.front().refusal(p, kHopper), "takes fewer features");
}

}  // namespace
}  // namespace transformer_kernels::cuda

#endif
