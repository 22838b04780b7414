// SPDX-License-Identifier: MIT
// Tiles of the tensor-core engine. No CUDA header, so that the choice is tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "attention/problem.h"

namespace transformer_kernels::cuda {

// A kernel owns warps * warp_rows rows and streams tiles of `cols` of the other side.
struct TensorCoreTile {
  int dim;  // D and Dv are padded to it
  int warps;
  int warp_rows;
  int cols;

  constexpr int threads() const { return warps * 32; }
  constexpr int rows() const { return warps * warp_rows; }
  // `own` and `streamed` matrices, the latter two stages deep.
  constexpr int shared_bytes(int element_bytes, int own, int streamed) const {
    return element_bytes * dim * (own * rows() + 2 * streamed * cols);
  }
};

struct TensorCoreForwardPlan {
  const char* name;
  int element_bytes;
  bool has_features;  // knows bias, mask, softcap, ALiBi, dropout, and scales that are not positive
  TensorCoreTile tile;
  bool wants_many;  // pays where there is a tile for each multiprocessor

  constexpr BlockSizes block() const { return {tile.rows(), tile.cols}; }
  constexpr int most_dim() const { return tile.dim; }
  constexpr int shared_bytes() const { return tile.shared_bytes(element_bytes, 1, 2); }
};

struct TensorCoreBackwardPlan {
  const char* name;
  int element_bytes;
  bool has_features;
  TensorCoreTile keys;     // for dk and dv, which own keys
  TensorCoreTile queries;  // for dq, which owns queries

  constexpr BlockSizes block() const { return {keys.cols, keys.rows()}; }
  constexpr int most_dim() const { return keys.dim; }
  constexpr int shared_bytes() const {
    return std::max(keys.shared_bytes(element_bytes, 2, 2),
                    queries.shared_bytes(element_bytes, 2, 2));
  }
};

// The first plan that fits a problem runs it. Two CTAs a multiprocessor keep its tensor cores busy
// where one waits; all fit the 99 KB of sm_86, sm_89 and sm_120. 32 rows a warp halve the reads of
// shared memory, where there are enough registers. A float32 head dim of 256 has more results than
// registers hold beside operands in two parts.
// clang-format off
inline constexpr TensorCoreForwardPlan kTensorCoreForwardPlans[] = {
    //                                            dim warps rows cols
    {"tensor_core_64_many",        2, false, { 64, 4, 32, 64}, true},
    {"tensor_core_64",             2, false, { 64, 4, 16, 64}, false},
    {"tensor_core_128_many",       2, false, {128, 4, 32, 32}, true},
    {"tensor_core_128",            2, false, {128, 4, 16, 64}, false},
    {"tensor_core_256",            2, false, {256, 4, 16, 32}, false},
    {"tensor_core_64_extras",      2, true,  { 64, 4, 32, 32}, false},
    {"tensor_core_128_extras",     2, true,  {128, 4, 16, 64}, false},
    {"tensor_core_256_extras",     2, true,  {256, 4, 16, 32}, false},
    {"tensor_core_64_float32",     4, false, { 64, 4, 32, 32}, false},
    {"tensor_core_128_float32",    4, false, {128, 4, 16, 32}, false},
    {"tensor_core_64_float32_extras",  4, true, { 64, 4, 16, 32}, false},
    {"tensor_core_128_float32_extras", 4, true, {128, 4, 16, 32}, false},
};

inline constexpr TensorCoreBackwardPlan kTensorCoreBackwardPlans[] = {
    //                                                keys              queries
    {"tensor_core_64",                 2, false, { 64, 4, 16, 64}, { 64, 4, 32, 32}},
    {"tensor_core_128",                2, false, {128, 4, 16, 32}, {128, 4, 32, 32}},
    {"tensor_core_256",                2, false, {256, 4, 16, 16}, {256, 4, 16, 16}},
    {"tensor_core_64_extras",          2, true,  { 64, 4, 16, 32}, { 64, 4, 16, 32}},
    {"tensor_core_128_extras",         2, true,  {128, 4, 16, 16}, {128, 4, 16, 32}},
    {"tensor_core_256_extras",         2, true,  {256, 4, 16, 16}, {256, 4, 16, 16}},
    {"tensor_core_64_float32",         4, false, { 64, 4, 16, 32}, { 64, 4, 32, 32}},
    {"tensor_core_128_float32",        4, false, {128, 4, 16, 16}, {128, 4, 16, 16}},
    {"tensor_core_64_float32_extras",  4, true,  { 64, 4, 16, 32}, { 64, 4, 16, 32}},
    {"tensor_core_128_float32_extras", 4, true,  {128, 4, 16, 16}, {128, 4, 16, 16}},
};
// clang-format on

inline constexpr int kTensorCoreForwardCount = static_cast<int>(std::size(kTensorCoreForwardPlans));
inline constexpr int kTensorCoreBackwardCount =
    static_cast<int>(std::size(kTensorCoreBackwardPlans));

constexpr int most_tensor_core_dim(int element_bytes) {
  int most = 0;
  for (const TensorCoreBackwardPlan& plan : kTensorCoreBackwardPlans) {
    if (plan.element_bytes == element_bytes) most = std::max(most, plan.most_dim());
  }
  return most;
}

// Shared memory of a kernel beside its tiles, at most.
inline constexpr int kTensorCoreStaticBytes = 3 * 1024;

// The tiles of a plan, for kernels.
template <int kIndex>
struct ForwardTileOf {
  static constexpr TensorCoreTile tile = kTensorCoreForwardPlans[kIndex].tile;
};
template <int kIndex>
struct KeyTileOf {
  static constexpr TensorCoreTile tile = kTensorCoreBackwardPlans[kIndex].keys;
};
template <int kIndex>
struct QueryTileOf {
  static constexpr TensorCoreTile tile = kTensorCoreBackwardPlans[kIndex].queries;
};

// Places, distances and their sums fit 32 bits.
inline constexpr std::int64_t kMostTensorCoreLength = kNoBound >> 1;

}  // namespace transformer_kernels::cuda
