// SPDX-License-Identifier: MIT
// The plan by which qk_norm's CUDA kernels lay rows over lanes. Host-only: tested without a GPU.
#pragma once

#include <algorithm>
#include <bit>

#include "rope/plan.h"
#include "rope/qk_norm_problem.h"

namespace transformer_kernels::cuda {

inline constexpr int kQkNormThreads = 128;  // of a CTA
// CTAs that an SM holds at least: said to the compiler, which on its own spills some bytes to make
// room for one more.
inline constexpr int kQkNormForwardCtas = 5;
inline constexpr int kQkNormBackwardCtas = 4;
inline constexpr int kWarpLanes = 32;
inline constexpr int kQkNormHeads = 4;  // of a group of lanes in the forward pass, at most
inline constexpr std::int64_t kQkNormSums = 512;  // CTAs of one tensor's backward pass, at most

// A group of `lanes` neighbouring lanes owns a row, a head of a token; lane l the units l,
// l + lanes, ... of it, two packs each. Of packs each lane has one unit at most.
struct QkNormGrid {
  int rotated;          // units that the angles turn
  int units;            // of a row
  int lanes;            // a power of two
  unsigned q_ctas = 0;  // CTAs before this one are of q, the others of k

  constexpr int groups() const { return kQkNormThreads / lanes; }  // of a CTA
};

constexpr std::int64_t head_groups(std::int64_t heads) { return divide_up(heads, kQkNormHeads); }

constexpr QkNormGrid qk_norm_grid(const RopeProblem& p, std::int64_t size) {
  const std::int64_t rotated = divide_up(p.angles.frequencies, size);
  const std::int64_t units = rotated + divide_up(p.dim - p.rotary_dim(), 2 * size);
  const auto lanes =
      std::bit_ceil(static_cast<unsigned>(std::clamp<std::int64_t>(units, 1, kWarpLanes)));
  return {static_cast<int>(rotated), static_cast<int>(units), static_cast<int>(lanes)};
}

// The number of CTAs depends on the shape alone, and so does the order of sums.
constexpr std::int64_t qk_norm_ctas(const RopeProblem& p, const QkNormGrid& grid) {
  return std::clamp<std::int64_t>(divide_up(p.tokens(), grid.groups()), 1, kQkNormSums);
}

inline bool has_packs(const RopeProblem& p) {
  return packs_fit(p) && qk_norm_grid(p, 16 / size_of(p.dtype)).units <= kWarpLanes;
}

}  // namespace transformer_kernels::cuda
