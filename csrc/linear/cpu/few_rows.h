// SPDX-License-Identifier: MIT
// Products of few rows: the exports of few_rows_isa.cpp, which is compiled once per instruction
// set.
//
// A weight that is packed has an order that is better still: few_panels.h.
//
// Such a product takes as long as its right operand, the weight, takes to come from memory. So the
// weight is read once, in place, and never copied. The few rows of the left operand are rearranged
// into the order in which the innermost loop reads them, and stay in the cache.
#pragma once

#include "linear/cpu/kernels.h"
#include "linear/rules.h"

namespace transformer_kernels::cpu {

inline constexpr std::int64_t kFewCols = 64;  // of a task

// Rows are taken in tiles of 8; the last one is of as many as there are, filled up to a power of 2.
inline constexpr std::int64_t kTallestTile = 8;
constexpr std::int64_t tile_rows(std::int64_t left) {
  return left > 4 ? kTallestTile : (left > 2 ? 4 : left);
}
constexpr std::int64_t padded_rows(std::int64_t rows) {
  return rows / kTallestTile * kTallestTile + tile_rows(rows % kTallestTile);
}
// Enough for whole vectors of any set.
constexpr std::int64_t padded_terms(std::int64_t terms) { return rounded_up(terms + 1, 32); }

// Whether the weight is read where its elements lie together along its terms.
constexpr bool is_by_terms(const Product& p) {
  return p.packed_b == nullptr && (p.b.row_step == 1 || p.terms <= 1);
}

constexpr bool has_few_rows(const Product& p) {
  return p.rows <= kFewRows && (is_by_terms(p) || p.b.col_step == 1 || p.cols <= 1);
}

struct FewRowsTask {
  const Product& product;
  void* left;  // in order: padded_rows() x padded_terms() of the precision of the arithmetic
  const PointwiseKernels* activations;
};

struct FewRowsKernels {
  void (*arrange)(const FewRowsTask& task);
  // Columns [begin, end) of the result, in units of kFewCols.
  void (*multiply)(const FewRowsTask& task, std::int64_t begin, std::int64_t end);
  // Writes a block of the result from its sums, which are in the precision of the arithmetic with
  // rows kFewCols apart.
  void (*finish)(const FewRowsTask& task, const Block& block, const void* sums);
};

struct FewRowsTable {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  FewRowsKernels of[kDTypes];
};

TFK_DECLARE_PER_ISA(extern const FewRowsTable few_rows_kernels)

const FewRowsKernels& few_rows_kernels_of(DType dtype);

void multiply_few_rows(const Context& context, const Product& product,
                       const PointwiseKernels& activations);

}  // namespace transformer_kernels::cpu
