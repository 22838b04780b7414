// SPDX-License-Identifier: MIT
// The problems that the tensor-core engine takes, and its choice of tiles.
#if TFK_CUDA_SM80

#include "attention/sm80/engine.h"

#include <gtest/gtest.h>

#include <string>

#include "attention/sm80/plan.h"
#include "device_limits.h"

namespace transformer_kernels::cuda {
namespace {

AttentionBackwardProblem problem() {
  AttentionBackwardProblem p{};
  p.dtype = DType::kBFloat16;
  p.batch = 2;
  p.heads = p.kv_heads = 4;
  p.queries = p.keys = 100;
  p.dim = p.value_dim = 64;
  p.scale = 1;
  return p;
}

template <class Engines, class Problem>
std::string chosen(const Engines& engines, const Problem& p, const DeviceLimits& device = kAda) {
  for (const auto& engine : engines) {
    if (engine.refusal(p, device) == nullptr) return name_of(&engine);
  }
  return "";
}

// Why the plan of this name does not run it.
std::string refusal(const std::string& name, const AttentionBackwardProblem& p,
                    const DeviceLimits& device = kAda) {
  for (const auto& engine : kTensorCoreBackwardEngines) {
    if (engine.name != name) continue;
    const char* const reason = engine.refusal(p, device);
    return reason == nullptr ? "" : reason;
  }
  return "there is no such plan";
}

TEST(TensorCoreAttention, says_what_it_does_not_take) {
  constexpr const char* kName = "tensor_core_64";
  AttentionBackwardProblem p = problem();
  EXPECT_EQ(refusal(kName, p), "");
  EXPECT_EQ(refusal(kName, p, {75, 40, 65536}), "it needs sm_80 or later");
  EXPECT_EQ(refusal(kName, p, {80, 40, 1024}), "the device has too little shared memory");
  p.dtype = DType::kFloat64;
  EXPECT_EQ(refusal(kName, p), "it does not multiply float64");
  p.dtype = DType::kFloat32;
  EXPECT_EQ(refusal(kName, p), "it is for another dtype");
  p = problem();
  p.value_dim = 60;
  EXPECT_EQ(refusal(kName, p), "a head dim is no multiple of 16 bytes");
  p.value_dim = 72;
  EXPECT_EQ(refusal(kName, p), "a head dim is larger");
  p = problem();
  p.scale = -1;
  EXPECT_EQ(refusal(kName, p), "it knows no features of scores");
  p = problem();
  p.k.row_stride = 260;
  EXPECT_EQ(refusal(kName, p), "rows of q, k or v are not aligned to 16 bytes");
  p = problem();
  p.dq.data = reinterpret_cast<void*>(8);
  EXPECT_EQ(refusal(kName, p), "rows of out or of a gradient are not aligned to 16 bytes");
  p = problem();
  p.keys = kMostTensorCoreLength;
  EXPECT_EQ(refusal(kName, p), "there are too many rows");
}

TEST(TensorCoreAttention, takes_gradients_of_every_bias) {
  float place = 0;
  AttentionBackwardProblem p = problem();
  p.bias = {&place, DType::kBFloat16, 40000, 10000, 100, 1};
  p.dbias = {&place, DType::kFloat32, 40000, 10000, 100, 1};
  EXPECT_EQ(chosen(kTensorCoreBackwardEngines, p), "tensor_core_64_extras 32x64");
  p.dbias = {&place, DType::kFloat32, 0, 10000, 0, 1};
  EXPECT_EQ(chosen(kTensorCoreBackwardEngines, p), "tensor_core_64_extras 32x64");
}

TEST(TensorCoreAttention, takes_the_smallest_tile_that_holds_the_dims) {
  AttentionBackwardProblem p = problem();
  EXPECT_EQ(chosen(kTensorCoreBackwardEngines, p), "tensor_core_64 64x64");
  p.value_dim = 72;
  EXPECT_EQ(chosen(kTensorCoreBackwardEngines, p), "tensor_core_128 32x64");
  p.value_dim = 256;
  EXPECT_EQ(chosen(kTensorCoreBackwardEngines, p), "tensor_core_256 16x64");
  p.drop_below = 1;
  EXPECT_EQ(chosen(kTensorCoreBackwardEngines, p), "tensor_core_256_extras 16x64");
  p.dtype = DType::kFloat32;
  EXPECT_EQ(chosen(kTensorCoreBackwardEngines, p), "");
  p.value_dim = 128;
  EXPECT_EQ(chosen(kTensorCoreBackwardEngines, p), "tensor_core_128_float32_extras 16x64");
}

TEST(TensorCoreAttention, takes_smaller_tiles_where_large_ones_are_few) {
  AttentionForwardProblem p{};
  static_cast<AttentionProblem&>(p) = problem();
  p.queries = 128 * kAda.processors / static_cast<int>(p.batch * p.heads) + 128;
  EXPECT_EQ(chosen(kTensorCoreForwardEngines, p), "tensor_core_64_many 128x64");
  p.queries = 128;
  EXPECT_EQ(chosen(kTensorCoreForwardEngines, p), "tensor_core_64 64x64");
  p.dim = 128;
  EXPECT_EQ(chosen(kTensorCoreForwardEngines, p), "tensor_core_128 64x64");
}

// Every card from sm_80 on lets a CTA have this much.
TEST(TensorCoreAttention, tiles_fit_every_card) {
  constexpr int kLeast = 99 * 1024;
  for (const auto& plan : kTensorCoreForwardPlans) {
    EXPECT_LE(plan.shared_bytes() + kTensorCoreStaticBytes, kLeast) << plan.name;
  }
  for (const auto& plan : kTensorCoreBackwardPlans) {
    EXPECT_LE(plan.shared_bytes() + kTensorCoreStaticBytes, kLeast) << plan.name;
  }
}

}  // namespace
}  // namespace transformer_kernels::cuda

#endif
