// SPDX-License-Identifier: MIT
// The CPU engine of products: the exports of kernels_isa.cpp, which is compiled once per
// instruction set.
//
// A product is computed in blocks of its result. First its operands are copied, once a call, into
// the order in which the innermost loop reads them and into the precision of the arithmetic:
// whatever the strides and the dtype were, that loop runs through memory without a gap. Each block
// adds up parts of its sums in memory of its own, and goes through its epilogue while it is in the
// cache.
#pragma once

#include "core/cpu/isa.h"
#include "core/rounding.h"
#include "linear/product.h"
#include "pointwise/kernels_isa.h"

namespace transformer_kernels::cpu {

// A block of the result, and of a part of its sums: whole tiles and panels of every instruction
// set.
struct BlockSize {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t terms;
};
// With its share of the operands it stays in half of a second-level cache of 1 MB.
inline constexpr BlockSize kBlock{96, 192, 256};
// The block of products of bfloat16 in pairs, which pass through the caches faster: it takes a
// third of a second-level cache of 2 MB.
inline constexpr BlockSize kPairBlock{192, 384, 256};

// The left operand of a product is a, the right one the transpose of b: both have lines of terms.

// An operand in order: panels of `width` lines, [panel][term][line of the panel]. Lines are rows of
// the result, or columns; the last panel is filled up with zeros. Products of
// pairs have an order of their own in place of [term][line], with terms filled up (pair_pack.h).
struct PackTask {
  Matrix source;  // lines x terms
  std::int64_t lines;
  std::int64_t terms;
  std::int64_t width;
  void* target;
};

struct ProductTask {
  const Product& product;
  const void* left;  // both in order
  const void* right;
  std::int64_t block_rows;  // multiples of left_width and col_step, at most the kernels' block
  std::int64_t block_cols;
  const PointwiseKernels& activations;
};

// Part of the result.
struct Block {
  std::int64_t row;
  std::int64_t col;
  std::int64_t rows;
  std::int64_t cols;
};

struct FewRowsTask;  // few_rows.h

struct ProductKernels {
  std::int64_t left_width;
  std::int64_t right_width;
  std::int64_t col_step;   // columns of a block are a multiple of it: whole panels, whole vectors
  std::int64_t term_step;  // terms of a line in order are a multiple of it
  std::int64_t term_bytes;
  BlockSize block;

  // Parts [begin, end): part p of panel b is p * panels + b.
  void (*pack_left)(const PackTask& task, std::int64_t begin, std::int64_t end);
  void (*pack_right)(const PackTask& task, std::int64_t begin, std::int64_t end);
  // Blocks [begin, end) of the result: row block r of column block c is c * row blocks + r.
  void (*multiply)(const ProductTask& task, std::int64_t begin, std::int64_t end);
  // With at most so many rows a packed right operand is multiplied by multiply_few.
  std::int64_t few_rows;
  // Columns [begin, end) of a result of few rows, in units of col_step; the right operand is
  // packed.
  void (*multiply_few)(const FewRowsTask& task, std::int64_t begin, std::int64_t end);
};

// Sums of the columns of each chunk of rows.
struct ColumnSumTask {
  Rows matrix;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t rows_per_chunk;
  void* partials;  // as ColumnSums has them (core/cpu/columns.h)
};

struct LinearKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  ProductKernels product[kDTypes];
  ProductKernels product_of_pairs;  // of bfloat16; as product[] where the set has none
  // Chunks [begin, end).
  void (*sum_columns[kDTypes])(const ColumnSumTask& task, std::int64_t begin, std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const LinearKernels linear_kernels)

// The kernels that products of the dtype run.
const ProductKernels& product_kernels(DType dtype);

// Computes it, by few_rows.h where it has few rows.
void multiply(const Context& context, const Product& product);

}  // namespace transformer_kernels::cpu
