// SPDX-License-Identifier: MIT
// Checked arguments. Both ops have the same problems: the sum of rows of up to three tables, and
// the gradient of one table.
#pragma once

#include <string>

#include "core/rows.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels {

// The index of token i is data[i % period]; first + i % period where there is no data.
struct EmbeddingIndices {
  const char* name;  // in messages
  const void* data;
  bool is_int64;
  std::int64_t first;
  std::int64_t period;  // tokens, or a divisor of them
};

struct EmbeddingTable {
  Rows weight;
  std::int64_t rows;
  EmbeddingIndices indices;
};

struct EmbeddingForwardProblem {
  static constexpr int kMostTables = 3;

  const char* op;
  DType dtype;
  std::int64_t tokens;
  std::int64_t cols;
  int tables;
  EmbeddingTable table[kMostTables];
  Rows y;
};

struct EmbeddingBackwardProblem {
  const char* op;
  DType dtype;
  std::int64_t tokens;
  std::int64_t cols;
  Rows dy;
  EmbeddingIndices indices;
  std::int64_t padding_idx;
  bool scale_grad_by_freq;
  std::int64_t rows;  // of dweight
  Rows dweight;
};

std::string describe(const EmbeddingForwardProblem& problem);
std::string describe(const EmbeddingBackwardProblem& problem);

namespace cpu {
void check_numbers(const Context& context, const EmbeddingForwardProblem& problem);
void check_numbers(const Context& context, const EmbeddingBackwardProblem& problem);
void embedding_forward(const Context& context, const EmbeddingForwardProblem& problem);
void embedding_backward(const Context& context, const EmbeddingBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void embedding_forward(const Context& context, const EmbeddingForwardProblem& problem);
void embedding_backward(const Context& context, const EmbeddingBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
