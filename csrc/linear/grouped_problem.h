// SPDX-License-Identifier: MIT
// Checked arguments of layers of groups of rows, as plain matrices.
#pragma once

#include <cstddef>
#include <string>

#include "linear/problem.h"
#include "transformer_kernels/linear/grouped_linear.h"

namespace transformer_kernels {

// Group g has the rows [offsets[g], offsets[g + 1]) of `rows`.
struct RowGroups {
  const std::int32_t* offsets;
  std::int64_t count;
  std::int64_t rows;
};

// Row i is row index[i] of `rows`, which has `count` of them; without an index it is row i.
struct IndexedRows {
  Rows rows{};
  const std::int32_t* index = nullptr;
  std::int64_t count = 0;
};

// One matrix a group.
struct GroupedMatrix {
  Matrix first{};
  std::int64_t step = 0;  // elements from one group's to the next

  GroupedMatrix transposed() const { return {first.transposed(), step}; }
  Matrix of(std::int64_t group, DType dtype) const {
    Matrix own = first;
    if (own.data != nullptr) {
      own.data = static_cast<std::byte*>(own.data) + group * step * size_of(dtype);
    }
    return own;
  }
};

// out[i] = factor(i) (a[i] b[g] + bias[g]), or that added to it: a layer, or the gradient of its x.
struct GroupedProduct {
  const char* op = nullptr;
  DType dtype{};
  DType bias_dtype = dtype;
  RowGroups groups{};
  std::int64_t cols = 0;
  std::int64_t terms = 0;
  IndexedRows a{};
  GroupedMatrix b{};              // terms x cols
  const void* bias = nullptr;     // may be null; (groups, cols)
  const void* factors = nullptr;  // may be null; of accumulate_dtype(dtype)
  Rows out{};
  bool accumulates = false;
};

// out[g] = the sum of factor(i) a[i]^T b[i] over the rows of g: the gradient of a weight.
struct GroupedGradient {
  const char* op = nullptr;
  DType dtype{};
  DType out_dtype = dtype;
  RowGroups groups{};
  std::int64_t rows = 0;  // of each result: columns of a
  std::int64_t cols = 0;
  IndexedRows a{};
  IndexedRows b{};
  const void* factors = nullptr;
  GroupedMatrix out{};
  bool accumulates = false;
};

// bias[g] = the sum of factor(i) a[i] over the rows of g.
struct GroupedBiasGradient {
  const char* op = nullptr;
  DType dtype{};
  DType bias_dtype{};
  RowGroups groups{};
  std::int64_t cols = 0;
  IndexedRows a{};
  const void* factors = nullptr;
  void* dbias = nullptr;
  bool accumulates = false;
};

struct GroupedBackwardProblem {
  GroupedProduct dx;  // each is wanted where its result is not null
  GroupedGradient dweight;
  GroupedBiasGradient dbias;
};

// out[i] = f(gate[i]) up[i].
struct GroupedGatedProblem {
  Pointwise activation;
  GroupedProduct gate;  // its out is null where gate and up are not kept
  GroupedProduct up;
  Rows out;

  bool keeps() const { return gate.out.data != nullptr; }
};

struct GroupedDgatedProblem {
  Pointwise activation;
  GroupedProduct product;  // da: without an out
  Rows gate{};
  Rows up{};
  const void* factors = nullptr;  // may be null
  Rows dgate{};
  Rows dup{};
  Rows h{};                  // may be null
  void* dfactors = nullptr;  // may be null
};

std::string describe(const GroupedProduct& product);
std::string describe(const GroupedGradient& gradient);
std::string describe(const GroupedBackwardProblem& problem);
std::string describe(const GroupedGatedProblem& problem);
std::string describe(const GroupedDgatedProblem& problem);

namespace cpu {
void check_numbers(const Context& context, const GroupedProduct& product);
void check_numbers(const Context& context, const GroupedBackwardProblem& problem);
void check_numbers(const Context& context, const GroupedGatedProblem& problem);
void check_numbers(const Context& context, const GroupedDgatedProblem& problem);
void grouped_linear_forward(const Context& context, const GroupedProduct& product);
void grouped_linear_backward(const Context& context, const GroupedBackwardProblem& problem);
void grouped_gated_linear_forward(const Context& context, const GroupedGatedProblem& problem);
void grouped_linear_dgated(const Context& context, const GroupedDgatedProblem& problem);
}  // namespace cpu
namespace cuda {
void grouped_linear_forward(const Context& context, const GroupedProduct& product);
void grouped_linear_backward(const Context& context, const GroupedBackwardProblem& problem);
void grouped_gated_linear_forward(const Context& context, const GroupedGatedProblem& problem);
void grouped_linear_dgated(const Context& context, const GroupedDgatedProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
