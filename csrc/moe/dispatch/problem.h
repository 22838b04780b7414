// SPDX-License-Identifier: MIT
// The room of the dispatch. This header has its checked arguments, as plain rows. Four passes are
// two movements: rows of tokens are spread over their places, or those of the places are combined.
#pragma once

#include <string>

#include "core/rows.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/moe/dispatch.h"

namespace transformer_kernels {

inline constexpr int kMostAssigned = 16;  // experts of a token
inline constexpr int kMostSortedExperts = 4096;

struct SortProblem {
  const char* op;
  std::int64_t tokens;
  int assigned;
  int experts;
  std::int64_t capacity;  // more than there are assignments, where there is none
  const std::int32_t* indices;
  std::int32_t* offsets;
  std::int32_t* token_of;
  std::int32_t* places;

  constexpr std::int64_t assignments() const { return tokens * assigned; }
  // An index that is no expert counts as one behind the last, who has no places.
  constexpr int expert(std::int32_t index) const {
    return index >= 0 && index < experts ? index : experts;
  }
};

struct DispatchProblem {
  const char* op;
  DType dtype;
  std::int64_t tokens;
  int assigned;
  std::int64_t cols;
  const std::int32_t* places;
  const void* weights;  // null: 1
  DType weights_dtype;
  Rows of_tokens;  // read by a spread and by the gradient of weights, written by combine
  Rows of_places;  // written by a spread, where it is not null; else read
  Rows weighted;   // the gradient of weights multiplies with these rows of places
  void* dweights;  // null: no gradient of weights

  constexpr std::int64_t assignments() const { return tokens * assigned; }
  // Whether a place is that of an assignment which is not dropped.
  constexpr bool is_kept(std::int32_t place) const { return place >= 0 && place < assignments(); }
};

struct SpreadProblem : DispatchProblem {};
struct CombineProblem : DispatchProblem {};

std::string describe(const SortProblem& problem);
std::string describe(const SpreadProblem& problem);
std::string describe(const CombineProblem& problem);

namespace cpu {
void check_places(const Context& context, const SpreadProblem& problem);
void check_places(const Context& context, const CombineProblem& problem);
void moe_sort(const Context& context, const SortProblem& problem);
void moe_spread(const Context& context, const SpreadProblem& problem);
void moe_combine(const Context& context, const CombineProblem& problem);
}  // namespace cpu
namespace cuda {
void moe_sort(const Context& context, const SortProblem& problem);
void moe_spread(const Context& context, const SpreadProblem& problem);
void moe_combine(const Context& context, const CombineProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
