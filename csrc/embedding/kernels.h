// SPDX-License-Identifier: MIT
// Host declarations that the family's CUDA sources share.
#pragma once

#include <cstdint>

#include "embedding/plan.h"
#include "embedding/problem.h"

namespace transformer_kernels::cuda {

// Tokens in the order of their index, those of equal indices in their own order; place by place.
// Without arrays, where the indices are first, first + 1, ... again and again, by arithmetic.
struct SortedTokens {
  const std::uint32_t* indices;  // the number of rows for those without a part in the gradient
  const std::uint32_t* tokens;
  std::uint32_t count;
  std::uint32_t repeats;  // of each index, where there are no arrays
  std::uint32_t period;
  std::int64_t first;
  bool rows_are_zeros;  // the gradient was cleared meanwhile
};

class TokenSort {
 public:
  explicit TokenSort(const EmbeddingBackwardProblem& problem);

  std::size_t bytes() const { return kArrays * array_bytes_ + temporary_bytes_; }
  SortedTokens run(const Context& context, char* memory) const;

 private:
  static constexpr int kArrays = 4;  // indices and tokens, and those of a step before

  const EmbeddingBackwardProblem& problem_;
  std::size_t array_bytes_;
  std::size_t temporary_bytes_ = 0;
};

// `packs`: of 16 bytes, else single elements.
template <class T>
void run_embedding(const Context& context, const EmbeddingForwardProblem& problem, bool packs);
template <class T>
void run_embedding(const Context& context, const EmbeddingBackwardProblem& problem,
                   const SortedTokens& sorted, bool packs);

}  // namespace transformer_kernels::cuda
