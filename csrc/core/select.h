// SPDX-License-Identifier: MIT
// Choice of a kernel from an ordered table, best first: the first row that takes the problem runs.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>

#include "core/check.h"
#include "core/log.h"

namespace transformer_kernels {

// The index of the first row that `refusal(row)` has nothing against (it returns null, else the
// reason why not), or nothing. `name_of(row)` and `describe(problem)`, found by argument-dependent
// lookup, put both in words. With TFK_KERNEL=<text> only rows whose name contains the text are
// candidates, which is how the slower rows are tested and timed.
template <class Table, class Problem, class Refusal>
std::optional<std::size_t> find_kernel(const char* op, const Table& table, const Problem& problem,
                                       Refusal&& refusal) {
  for (std::size_t i = 0; i < std::size(table); ++i) {
    const char* reason = kernel_is_wanted([&] { return name_of(table[i]); })
                             ? refusal(table[i])
                             : "not the one that TFK_KERNEL asks for";
    if (log_dispatch()) {
      log_line(concat(op, " ", describe(problem), ": ", name_of(table[i]),
                      reason ? " refused: " : " runs", reason ? reason : ""));
    }
    if (reason == nullptr) return i;
  }
  return {};
}

// find_kernel() for a table in which at least one row takes the problem.
template <class Table, class Problem, class Refusal>
std::size_t choose(const char* op, const Table& table, const Problem& problem, Refusal&& refusal) {
  const std::optional<std::size_t> chosen = find_kernel(op, table, problem, refusal);
  if (chosen) return *chosen;
  throw Error(Error::Kind::kRuntime, concat(op, ": no kernel takes ", describe(problem)));
}

}  // namespace transformer_kernels
