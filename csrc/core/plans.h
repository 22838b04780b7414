// SPDX-License-Identifier: MIT
// Plans: the ways of a kernel to run a problem, as a table. A rule names one; where this machine
// has times of them (core/times.h), the fastest runs. All plans of a table give the same bits.
// Times stand under "plan", the op and its problem; a process without such times asks nothing.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/check.h"
#include "transformer_kernels/api.h"

namespace transformer_kernels {

// Records which plans are asked for until it is called with false, and forgets those before.
TFK_API void record_plans(bool on);

// A line for each problem that was recorded: what its times stand under, and the names of its
// plans, the rule's first, with tabs between them.
TFK_API std::string recorded_plans();

// Whether this machine has times of plans, at little cost.
bool has_times_of_plans();

// Whether plans have times or are recorded, at little cost.
bool asks_for_plans();

// The number of the plan that runs.
std::size_t choose_plan(const std::string& timed, std::span<const std::string_view> names,
                        std::size_t by_rule);

// The plan of a problem from a table of structures with a `name`.
template <class Plan, std::size_t kCount, class Problem>
const Plan& plan_of(const char* op, const Plan (&plans)[kCount], const Problem& problem,
                    std::size_t by_rule) {
  if (!asks_for_plans()) return plans[by_rule];
  std::array<std::string_view, kCount> names;
  for (std::size_t i = 0; i < kCount; ++i) names[i] = plans[i].name;
  return plans[choose_plan(concat("plan ", op, " ", describe(problem)), names, by_rule)];
}

}  // namespace transformer_kernels
