// SPDX-License-Identifier: MIT
// The plan by which the CUDA kernels lay a matrix over threads. Host-only: tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "core/rounding.h"
#include "pointwise/problem.h"

namespace transformer_kernels::cuda {

inline constexpr int kPointwiseThreads = 256;  // at most, of a CTA
inline constexpr int kPointwiseBiasRows = 4;   // of a thread of the forward pass with a bias

// A CTA owns `threads` neighbouring packs of each of threads_y * rows_per_thread rows.
struct PointwiseGrid {
  int threads;
  int threads_y;
  std::int64_t column_blocks;
  std::int64_t row_blocks;

  // Row blocks are numbered along y and z: a grid has at most 65535 of either.
  static constexpr std::int64_t kMostCtas = 65535;
  int ctas_y() const { return static_cast<int>(std::min(row_blocks, kMostCtas)); }
  int ctas_z() const { return static_cast<int>(divide_up(row_blocks, kMostCtas)); }
};

// Rows so narrow that a CTA's threads would be idle share one. A CTA has a multiple of `together`
// packs of a row.
constexpr PointwiseGrid pointwise_grid(std::int64_t rows, std::int64_t packs,
                                       std::int64_t rows_per_thread, int together = 1) {
  const std::int64_t column_blocks = std::max<std::int64_t>(1, divide_up(packs, kPointwiseThreads));
  const auto threads = static_cast<int>(
      std::max<std::int64_t>(together, rounded_up(divide_up(packs, column_blocks), together)));
  const auto threads_y = static_cast<int>(
      std::clamp<std::int64_t>(divide_up(rows, rows_per_thread), 1, kPointwiseThreads / threads));
  return {threads, threads_y, column_blocks, divide_up(rows, threads_y * rows_per_thread)};
}

// Rows that one thread takes where it sums up the gradients of biases: many, since each CTA writes
// its sums, but few enough that all processors have some. Of the shape alone: so is the result.
constexpr std::int64_t rows_per_sum(std::int64_t rows, std::int64_t packs, int together = 1) {
  constexpr std::int64_t kMostRows = 128;
  constexpr std::int64_t kEnoughCtas = 1024;
  const PointwiseGrid one = pointwise_grid(rows, packs, 1, together);
  return std::clamp<std::int64_t>(one.row_blocks * one.column_blocks / kEnoughCtas, 1, kMostRows);
}

// Whether 16-byte packs can be used: every row of every matrix, and every bias, starts on such a
// boundary. Those that are absent, at 0, do.
inline bool packs_fit(DType dtype, std::int64_t rows, std::initializer_list<Rows> matrices,
                      std::initializer_list<const void*> biases) {
  const auto starts = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  };
  return std::ranges::all_of(matrices,
                             [&](const Rows& matrix) {
                               const bool step = matrix.stride * size_of(dtype) % 16 == 0;
                               return starts(matrix.data) && (rows <= 1 || step);
                             }) &&
         std::ranges::all_of(biases, starts);
}

}  // namespace transformer_kernels::cuda
