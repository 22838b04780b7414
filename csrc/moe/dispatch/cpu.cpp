// SPDX-License-Identifier: MIT
// The dispatch on the CPU: a counting sort of pieces of the assignments, whose bounds do not matter
// to the result, and rows of tokens in parallel.
#include <algorithm>
#include <utility>

#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "moe/dispatch/kernels.h"

namespace transformer_kernels::cpu {
namespace {

constexpr std::int64_t kPieceAssignments = 8192;

const DispatchKernels& kernels() {
  constexpr const DispatchKernels* kTables[] = TFK_PER_ISA(dispatch_kernels);
  return *kTables[static_cast<int>(isa())];
}

void check(const DispatchProblem& p) {
  for (std::int64_t i = 0; i < p.assignments(); ++i) {
    const std::int32_t place = p.places[i];
    check_value((place < 0 ? ~place : place) < p.assignments(), p.op, ": places has ", place,
                ", expected one of [", -p.assignments(), ", ", p.assignments() - 1, "]");
  }
}

// The assignments of each piece to each expert, and to those that are none; then, in their place,
// the next place of each.
class Sort {
 public:
  Sort(const Context& context, const SortProblem& p)
      : context_(context),
        p_(p),
        keys_(p.experts + 1),
        pieces_(divide_up(p.assignments(), kPieceAssignments)),
        counts_(context, std::max<std::int64_t>(1, pieces_ * keys_) * sizeof(std::int32_t)) {}

  void run() {
    for_pieces([&](std::int64_t piece) { count(piece); });
    find_places();
    for_pieces([&](std::int64_t piece) { place(piece); });
  }

 private:
  template <class Body>
  void for_pieces(Body&& body) {
    parallel_for(context_, pieces_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) body(piece);
    });
  }
  std::int32_t* counts(std::int64_t piece) const {
    return static_cast<std::int32_t*>(counts_.data()) + piece * keys_;
  }
  std::int64_t end_of(std::int64_t piece) const {
    return std::min((piece + 1) * kPieceAssignments, p_.assignments());
  }

  void count(std::int64_t piece) {
    std::int32_t* const own = counts(piece);
    std::fill_n(own, keys_, 0);
    for (std::int64_t i = piece * kPieceAssignments; i < end_of(piece); ++i) {
      ++own[p_.expert(p_.indices[i])];
    }
  }

  // Turns counts into the rank, within its expert, of each piece's first assignment.
  void find_places() {
    std::int32_t next = 0;
    for (int e = 0; e < keys_; ++e) {
      std::int32_t rank = 0;
      for (std::int64_t piece = 0; piece < pieces_; ++piece) {
        rank += std::exchange(counts(piece)[e], rank);
      }
      p_.offsets[std::min(e, p_.experts)] = next;
      if (e < p_.experts)
        next += static_cast<std::int32_t>(std::min<std::int64_t>(rank, p_.capacity));
      dropped_[e] = rank;
    }
    for (int e = 0; e < keys_; ++e) {
      const std::int64_t kept =
          e < p_.experts ? std::min<std::int64_t>(dropped_[e], p_.capacity) : 0;
      next += static_cast<std::int32_t>(std::exchange(dropped_[e], next) - kept);
    }
  }

  void place(std::int64_t piece) {
    std::int32_t* const rank = counts(piece);
    for (std::int64_t i = piece * kPieceAssignments; i < end_of(piece); ++i) {
      const int e = p_.expert(p_.indices[i]);
      const std::int64_t capacity = e < p_.experts ? p_.capacity : 0;
      const std::int32_t own = rank[e]++;
      const bool is_kept = own < capacity;
      const auto at =
          static_cast<std::int32_t>(is_kept ? p_.offsets[e] + own : dropped_[e] + own - capacity);
      p_.token_of[at] = is_kept ? static_cast<std::int32_t>(i / p_.assigned) : -1;
      p_.places[i] = is_kept ? at : ~at;
    }
  }

  const Context& context_;
  const SortProblem& p_;
  int keys_;
  std::int64_t pieces_;
  AlignedScratch counts_;
  std::int32_t dropped_[kMostSortedExperts + 1];  // the first place of each expert's dropped ones
};

template <class Kernels, class Problem>
void run_rows(const Context& context, const Problem& p, const Kernels& of_dtype) {
  log_cpu_kernel(p.op, p);
  parallel_for(context, p.tokens, rows_per_range(p.cols * p.assigned),
               [&](std::int64_t begin, std::int64_t end) {
                 of_dtype[static_cast<int>(p.dtype)](p, begin, end);
               });
}

}  // namespace

void check_places(const Context&, const SpreadProblem& p) { check(p); }
void check_places(const Context&, const CombineProblem& p) { check(p); }

void moe_sort(const Context& context, const SortProblem& p) {
  log_cpu_kernel(p.op, p);
  Sort(context, p).run();
}

void moe_spread(const Context& context, const SpreadProblem& p) {
  run_rows(context, p, kernels().spread);
}

void moe_combine(const Context& context, const CombineProblem& p) {
  run_rows(context, p, kernels().combine);
}

}  // namespace transformer_kernels::cpu
