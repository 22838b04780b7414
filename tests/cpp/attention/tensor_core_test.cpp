// SPDX-License-Identifier: MIT
// What the tensor-core engine takes, and the tiles it chooses from.
#ifdef TFK_WITH_CUDA

#include "attention/tensor_core.h"

#include <gtest/gtest.h>

#include <string>

#include "attention/tensor_core_plan.h"
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

std::string refusal(const AttentionBackwardProblem& p, const DeviceLimits& device = kAda) {
  const char* reason = kTensorCoreBackward.refusal(p, device);
  return reason == nullptr ? "" : reason;
}

TEST(TensorCoreAttention, says_what_it_does_not_take) {
  AttentionBackwardProblem p = problem();
  EXPECT_EQ(refusal(p), "");
  EXPECT_EQ(refusal(p, {75, 40, 65536}), "it needs sm_80 or later");
  p.dtype = DType::kFloat64;
  EXPECT_EQ(refusal(p), "it does not multiply float64");
  p = problem();
  p.value_dim = 60;
  EXPECT_EQ(refusal(p), "a head dim is no multiple of 16 bytes");
  p.dtype = DType::kFloat32;
  EXPECT_EQ(refusal(p), "");
  p = problem();
  p.k.row_stride = 260;
  EXPECT_EQ(refusal(p), "rows of q, k or v are not aligned to 16 bytes");
  p = problem();
  p.dq.data = reinterpret_cast<void*>(8);
  EXPECT_EQ(refusal(p), "rows of out or of a gradient are not aligned to 16 bytes");
  p = problem();
  p.keys = kMostTensorCoreLength;
  EXPECT_EQ(refusal(p), "there are too many rows");
}

TEST(TensorCoreAttention, takes_gradients_of_every_bias) {
  float place = 0;
  AttentionBackwardProblem p = problem();
  p.dbias = {&place, DType::kFloat32, 40000, 10000, 100, 1};
  EXPECT_EQ(refusal(p), "");
  p.dbias = {&place, DType::kFloat32, 0, 10000, 0, 1};
  EXPECT_EQ(refusal(p), "");
}

TEST(TensorCoreAttention, leaves_wide_float32_heads_to_others) {
  AttentionBackwardProblem p = problem();
  p.dim = p.value_dim = 256;
  EXPECT_EQ(refusal(p), "");
  p.dtype = DType::kFloat32;
  EXPECT_EQ(refusal(p), "a float32 head dim is above 128");
  p.dim = p.value_dim = 128;
  EXPECT_EQ(refusal(p), "");
}

template <class Tiles>
void expect_rising_tiles(std::int64_t most_dim) {
  for (const auto& tiles : {Tiles::forward, Tiles::forward_extras, Tiles::keys, Tiles::keys_extras,
                            Tiles::queries, Tiles::queries_extras}) {
    int dim = 0;
    for (const TensorCoreTile& tile : tiles) {
      EXPECT_GT(tile.dim, dim);
      dim = tile.dim;
    }
    EXPECT_EQ(dim, most_dim);
  }
}

TEST(TensorCoreAttention, tiles_rise_to_the_largest_head_dim) {
  expect_rising_tiles<TensorCoreTiles<2>>(kMostDim);
  expect_rising_tiles<TensorCoreTiles<4>>(128);
}

}  // namespace
}  // namespace transformer_kernels::cuda

#endif
