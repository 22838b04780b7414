// SPDX-License-Identifier: MIT
// Launch policy of softmax over narrow rows that are not 16-byte aligned: data and pure functions,
// no CUDA header. Chosen by measurement on an H200: docs/decisions/0005-launch-plans.md.
#pragma once

#include "core/cuda/chunk_plan.h"
#include "softmax/problem.h"

namespace transformer_kernels::cuda {

// The first plan that fits runs a problem; softmax/plan.h has those for what none takes.
//   lanes packs threads teams ctas stages chunk bytes
// clang-format off
inline constexpr ChunkPlan kSoftmaxForwardChunks[] = {
    { 4,  2,   64,  1,  16,  2,   3072},
    { 4,  3,   64,  1,  14,  2,   4096},
    { 8,  3,   64,  1,  14,  2,   5120},
    { 8,  4,  128,  1,   7,  2,   8192},
    {16,  3,  128,  1,   7,  2,   8192},
    {16,  4,  128,  1,   7,  2,   8192},
    {32,  3,  256,  1,   3,  2,  16384},
    {32,  4,  256,  1,   2,  3,  16384},
    {32,  5,  256,  1,   2,  2,  16384},
    {32,  6,  256,  1,   2,  2,  16384},
    {32,  8,  256,  1,   2,  2,  16384},
};

inline constexpr ChunkPlan kSoftmaxBackwardChunks[] = {
    { 4,  2,   64,  1,  14,  2,   3072},
    { 8,  2,   64,  1,  14,  2,   3072},
    {16,  2,  256,  1,   3,  2,   8704},
    {16,  3,  128,  1,   7,  2,   8704},
    {16,  4,  128,  1,   7,  2,   8704},
    {32,  3,  256,  1,   3,  2,  16384},
    {32,  4,  256,  1,   3,  2,  16384},
    {32,  5,  256,  1,   3,  2,  16384},
    {32,  6,  256,  1,   2,  2,  16384},
    {32,  8,  256,  1,   2,  2,  16384},
};
// clang-format on

inline ChunkLoad chunk_load(const SoftmaxForwardProblem& p) {
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .seamless = is_seamless(p.x, p.x_stride, p.cols) && is_seamless(p.y, p.y_stride, p.cols),
          .in = 1,
          .out = 1};
}

inline ChunkLoad chunk_load(const SoftmaxBackwardProblem& p) {
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .seamless = is_seamless(p.y, p.y_stride, p.cols) &&
                      is_seamless(p.dy, p.dy_stride, p.cols) &&
                      is_seamless(p.dx, p.dx_stride, p.cols),
          .in = 2,
          .out = 1};
}

// Null when the plan runs the problem on the device, else why not.
inline const char* chunk_refusal(const ChunkPlan& plan, const SoftmaxForwardProblem& p,
                                 const DeviceLimits& device) {
  if (p.masked()) return "knows no mask";
  // Elements outside of a row count as -infinity before they are scaled.
  if (!(static_cast<float>(p.scale) > 0)) return "scale is not positive";
  return chunk_refusal(plan, chunk_load(p), device);
}

inline const char* chunk_refusal(const ChunkPlan& plan, const SoftmaxBackwardProblem& p,
                                 const DeviceLimits& device) {
  if (p.masked) return "knows no mask";
  return chunk_refusal(plan, chunk_load(p), device);
}

}  // namespace transformer_kernels::cuda
