// SPDX-License-Identifier: MIT
// Choice of a kernel from an ordered table, best first. Of the rows that take the problem runs the
// one that was fastest on this machine (core/times.h); without times the first one that no rule
// says is slower than those behind it; and else the first.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>

#include "core/check.h"
#include "core/log.h"
#include "core/times.h"

namespace transformer_kernels {

// A row of which no rule says that it is slower.
inline constexpr auto kNoRule = [](const auto&) -> const char* { return nullptr; };

// The choice of one problem; its arguments are those of find_kernel().
template <class Table, class Problem, class Refusal, class Slower>
class Selection {
 public:
  Selection(const char* op, const Table& table, const Problem& problem, const Refusal& refusal,
            const Slower& slower)
      : op_(op),
        table_(table),
        problem_(problem),
        refusal_(refusal),
        slower_(slower) {}

  std::optional<std::size_t> by_times() const {
    if (!has_times()) return {};
    for (const Time& time : times_of(concat(op_, " ", describe(problem_)))) {
      for (std::size_t i = 0; i < std::size(table_); ++i) {
        if (name_of(table_[i]) != time.name || reason_against(i) != nullptr) continue;
        if (log_dispatch()) say(i, concat(" runs: it took ", time.microseconds, " us here"));
        return i;
      }
    }
    return {};
  }

  std::optional<std::size_t> by_rules() const {
    std::optional<std::size_t> slow;
    for (std::size_t i = 0; i < std::size(table_); ++i) {
      const char* const refusal = reason_against(i);
      const char* const slower = refusal == nullptr ? slower_(table_[i]) : nullptr;
      if (log_dispatch()) {
        say(i, refusal  ? concat(" refused: ", refusal)
               : slower ? concat(" is slower: ", slower)
                        : " runs");
      }
      if (refusal != nullptr) continue;
      if (slower == nullptr) return i;
      if (!slow) slow = i;
    }
    if (slow && log_dispatch()) say(*slow, " runs: the others are slower as well");
    return slow;
  }

 private:
  const char* reason_against(std::size_t i) const {
    return kernel_is_wanted([&] { return name_of(table_[i]); })
               ? refusal_(table_[i])
               : "not the one that TFK_KERNEL asks for";
  }
  void say(std::size_t i, const std::string& what) const {
    log_line(concat(op_, " ", describe(problem_), ": ", name_of(table_[i]), what));
  }

  const char* op_;
  const Table& table_;
  const Problem& problem_;
  const Refusal& refusal_;
  const Slower& slower_;
};

// The index of the row that runs, or nothing. `refusal(row)` says why the row cannot take the
// problem and `slower(row)` why it was measured to take longer than those behind it; null where
// there is no reason. `name_of(row)` and `describe(problem)`, found by argument-dependent lookup,
// put both in words. With TFK_KERNEL=<text> only rows whose name contains the text are candidates,
// which is how the slower rows are tested and timed. Whoever has chosen already asks no times.
template <class Table, class Problem, class Refusal, class Slower = decltype(kNoRule)>
std::optional<std::size_t> find_kernel(const char* op, const Table& table, const Problem& problem,
                                       const Refusal& refusal, const Slower& slower = kNoRule,
                                       bool asks_times = true) {
  const Selection selection(op, table, problem, refusal, slower);
  const std::optional<std::size_t> timed = asks_times ? selection.by_times() : std::nullopt;
  return timed ? timed : selection.by_rules();
}

// find_kernel() for a table in which at least one row takes the problem.
template <class Table, class Problem, class Refusal, class Slower = decltype(kNoRule)>
std::size_t choose(const char* op, const Table& table, const Problem& problem,
                   const Refusal& refusal, const Slower& slower = kNoRule, bool asks_times = true) {
  const std::optional<std::size_t> chosen =
      find_kernel(op, table, problem, refusal, slower, asks_times);
  if (chosen) return *chosen;
  throw Error(Error::Kind::kRuntime, concat(op, ": no kernel takes ", describe(problem)));
}

}  // namespace transformer_kernels
