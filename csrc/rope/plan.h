// SPDX-License-Identifier: MIT
// The plan by which the CUDA kernels lay tokens and their heads over threads. Host-only: tested
// without a GPU.
#pragma once

#include <cstdint>

#include "core/rounding.h"
#include "rope/problem.h"

namespace transformer_kernels::cuda {

inline constexpr int kRopeThreads = 128;  // of a CTA
inline constexpr int kRopeHeads = 2;      // at most, of a thread

// A place is a unit, two packs, of the heads group, group + groups, ... of a token. A thread owns
// one: it reads the angles of its unit once for all these heads. Places are numbered token by
// token.
struct RopeGrid {
  int rotated;  // units of a head that the angles turn
  int units;    // of a head, with those that pass through
  int groups;   // of heads
  std::int64_t ctas;

  constexpr int places() const { return units * groups; }  // of a token
};

// For packs of `size` elements.
constexpr RopeGrid rope_grid(const RopeProblem& p, std::int64_t size) {
  const std::int64_t rotated = divide_up(p.angles.frequencies, size);
  const std::int64_t rest = p.in_place() ? 0 : p.dim - p.rotary_dim();
  const std::int64_t units = rotated + divide_up(rest, 2 * size);
  const std::int64_t groups = divide_up(p.heads(), kRopeHeads);
  return {static_cast<int>(rotated), static_cast<int>(units), static_cast<int>(groups),
          divide_up(p.tokens() * units * groups, kRopeThreads)};
}

// Whether each part of a row starts on a 16-byte boundary, in every token and head, and consists of
// whole packs.
inline bool packs_fit(const RopeProblem& p) {
  const std::int64_t size = 16 / size_of(p.dtype);
  const auto starts = [&](const Heads& heads) {
    const bool steps = heads.batch % size == 0 && heads.time % size == 0 && heads.head % size == 0;
    return reinterpret_cast<std::uintptr_t>(heads.data) % 16 == 0 && steps;
  };
  const std::int64_t part = p.angles.interleaved ? p.rotary_dim() : p.angles.frequencies;
  const bool whole = part % size == 0 && p.dim % size == 0 && p.rotary_dim() % size == 0;
  return p.dtype != DType::kFloat64 && whole && starts(p.q) && starts(p.k) && starts(p.q_rotated) &&
         starts(p.k_rotated);
}

// Whether the rows of both tables are made of aligned packs.
inline bool table_packs_fit(const AngleTables& t) {
  const auto starts = [&](const Rows& table) {
    return reinterpret_cast<std::uintptr_t>(table.data) % 16 == 0 &&
           table.stride * size_of(t.dtype) % 16 == 0;
  };
  return starts(t.cos) && starts(t.sin);
}

}  // namespace transformer_kernels::cuda
