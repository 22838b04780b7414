// SPDX-License-Identifier: MIT
// Embeddings on the CPU: the exports of kernels_isa.cpp, which is compiled once per instruction
// set.
#pragma once

#include "core/cpu/isa.h"
#include "core/inline.h"
#include "embedding/problem.h"

namespace transformer_kernels::cpu {

struct EmbeddingForwardTask {
  const EmbeddingForwardProblem& problem;
  bool stream;  // y leaves the cache anyway
};

// Tokens sorted by their index, those of equal indices in their own order: the row r of the
// gradient is the sum of dy over tokens[begin(r)], ..., tokens[ends[r] - 1].
struct SortedTokens {
  const std::uint32_t* ends;
  const std::uint32_t* tokens;

  TFK_INLINE std::int64_t begin(std::int64_t row) const { return row == 0 ? 0 : ends[row - 1]; }
  TFK_INLINE std::int64_t count(std::int64_t row) const { return ends[row] - begin(row); }
};

// Up to this many tokens are summed in one go. More are cut into pieces of so many, whose sums are
// added in turn: threads share a row, and rounding errors grow slower.
inline constexpr std::int64_t kPieceTokens = 256;

struct EmbeddingPiece {
  std::int64_t row;
  std::int64_t begin;  // among the sorted tokens
};

struct EmbeddingBackwardTask {
  const EmbeddingBackwardProblem& problem;
  SortedTokens sorted;
  bool stream;  // dweight leaves the cache anyway
  const EmbeddingPiece* pieces;
  std::int64_t piece_count;
  void* sums;  // [piece_count][wide_cols], of accumulate_dtype
  std::int64_t wide_cols;
};

struct EmbeddingKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  // Tokens [begin, end).
  void (*forward[kDTypes])(const EmbeddingForwardTask& task, std::int64_t begin, std::int64_t end);
  // Pieces [begin, end).
  void (*sum_pieces[kDTypes])(const EmbeddingBackwardTask& task, std::int64_t begin,
                              std::int64_t end);
  // Rows [begin, end) of dweight; `scratch` is a wide row.
  void (*backward[kDTypes])(const EmbeddingBackwardTask& task, void* scratch, std::int64_t begin,
                            std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const EmbeddingKernels embedding_kernels)

}  // namespace transformer_kernels::cpu
