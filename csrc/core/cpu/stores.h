// SPDX-License-Identifier: MIT
// Plans of ops that write rows: into the cache, or past it.
#pragma once

#include "core/cpu/cache.h"
#include "core/plans.h"

namespace transformer_kernels::cpu {

struct StorePlan {
  const char* name;
  bool streams;
};

inline constexpr StorePlan kStorePlans[] = {{"cached", false}, {"streamed", true}};

// Whether the results of a problem are written past the cache: by rule those that leave it.
template <class Problem>
bool streams(const char* op, const Problem& problem) {
  return plan_of(op, kStorePlans, problem, leaves_cache(problem) ? 1 : 0).streams;
}

}  // namespace transformer_kernels::cpu
