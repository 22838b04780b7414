// SPDX-License-Identifier: MIT
// Launch policy of the norms over narrow rows that are not 16-byte aligned: data and pure
// functions, no CUDA header. Chosen by measurement on an H200: docs/decisions/0005-launch-plans.md.
#pragma once

#include "core/cuda/chunk_plan.h"
#include "norm/plan.h"

namespace transformer_kernels::cuda {

// The first plan that fits runs a problem; norm/plan.h has those for what none takes.
//   lanes packs threads teams ctas stages chunk bytes
// clang-format off
inline constexpr ChunkPlan kNormForwardChunks[] = {
    { 4,  2,   64,  1,  14,  2,   3072},
    { 4,  3,   64,  1,  12,  2,   4096},
    { 8,  3,   64,  1,  12,  2,   5120},
    { 8,  4,  128,  1,   5,  2,   8192},
    {16,  3,  128,  1,   6,  2,   8704},
    {16,  4,  128,  1,   5,  2,   8192},
    {32,  3,  256,  1,   3,  2,   8192},
    {32,  4,  256,  1,   2,  3,   8192},
    {32,  5,  256,  1,   2,  2,   8192},
    {32,  6,  256,  1,   2,  2,   8192},
    {32,  8,  256,  1,   2,  2,   8192},
};
// clang-format on

// A lane keeps its columns' sums of dweight and dbias in registers, of which few are left for more.
struct NormBackwardChunkPlan {
  ChunkPlan plan;
  unsigned traits = 0;
};

constexpr const ChunkPlan& plan_of(const NormBackwardChunkPlan& entry) { return entry.plan; }
inline std::string name_of(const NormBackwardChunkPlan& entry) { return name_of(entry.plan); }

//    lanes packs threads teams ctas stages chunk bytes
// clang-format off
inline constexpr NormBackwardChunkPlan kNormBackwardChunks[] = {
    {{ 4,  2,   64,  8,   1,  2,   3072}},
    {{ 8,  2,   64,  8,   1,  2,   3072}},
    {{16,  2,  128,  4,   1,  2,   5120}},
    {{16,  3,  128,  4,   1,  2,   8704}},
    {{32,  2,  256,  2,   1,  2,  16384}},
    {{32,  3,  256,  2,   1,  2,  16640}},
    {{32,  4,  256,  1,   1,  2,      0}, kLayerNorm | kTwoBytes},
    {{32,  4,  256,  2,   1,  2,      0}, kLayerNorm | kFourBytes},
    {{32,  4,  256,  2,   1,  2,      0}, kRmsNorm},
    {{32,  5,  256,  2,   1,  2,      0}, kLayerNorm | kFourBytes},
    {{32,  5,  256,  2,   1,  2,      0}, kRmsNorm},
    {{32,  5,  256,  1,   1,  2,      0}},
    {{32,  6,  256,  1,   1,  2,      0}, kFourBytes},
    {{32,  8,  256,  1,   1,  2,      0}, kFourBytes},
};
// clang-format on

// The values of a column that the forward kernel keeps: weight and bias.
struct alignas(8) ColumnAffine {
  float weight;
  float bias;
};

inline ChunkLoad chunk_load(const NormForwardProblem& p) {
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .seamless = is_seamless(p.x.data, p.x.stride, p.cols) &&
                      is_seamless(p.y.data, p.y.stride, p.cols),
          .in = 1,
          .out = 1,
          .column_bytes = sizeof(ColumnAffine)};
}

inline ChunkLoad chunk_load(const NormBackwardProblem& p) {
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .seamless = is_seamless(p.x.data, p.x.stride, p.cols) &&
                      is_seamless(p.dy.data, p.dy.stride, p.cols) &&
                      is_seamless(p.dx.data, p.dx.stride, p.cols),
          .in = 2,
          .out = 1,
          .column_bytes = sizeof(float),
          .sums_columns = true};
}

inline const char* chunk_refusal(const ChunkPlan& plan, const NormForwardProblem& p,
                                 const DeviceLimits& device) {
  if (p.residual.data != nullptr) return "adds no residual";
  return chunk_refusal(plan, chunk_load(p), device);
}

inline const char* chunk_refusal(const NormBackwardChunkPlan& entry, const NormBackwardProblem& p,
                                 const DeviceLimits& device) {
  if (p.dsum.data != nullptr) return "adds no gradient of a sum";
  if (!p.center && p.dbias != nullptr) return "sums no dbias for RMSNorm";
  const unsigned traits = norm_traits(p.center, false, size_of(p.dtype), size_of(p.weight_dtype));
  if ((entry.traits & ~traits) != 0) return "meant for another kind of norm";
  return chunk_refusal(entry.plan, chunk_load(p), device);
}

}  // namespace transformer_kernels::cuda
