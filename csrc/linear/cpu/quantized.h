// SPDX-License-Identifier: MIT
// Products with quantised weights: the exports of quantized_isa.cpp, which is compiled once per
// instruction set.
//
// With few rows the weight is read once, as the plain one is (few_rows.h), and its numbers become
// floats in registers. With more rows, parts of the weight become a plain matrix that the engine of
// large products multiplies, at a cost that the rows share.
#pragma once

#include "linear/cpu/few_rows.h"
#include "linear/quantized_problem.h"

namespace transformer_kernels::cpu {

struct QuantizedTask {
  const FewRowsTask& few;  // `left` in order, in float
  const QuantizedMatrix& weight;
  const FewRowsKernels& kernels;  // to finish blocks
};

// Lines and terms of a weight as a plain matrix, row by row.
struct DequantizeTask {
  const QuantizedMatrix& weight;
  std::int64_t first_line;
  std::int64_t first_term;  // even
  std::int64_t terms;
  void* target;  // of the dtype of x
};

// A right operand from a part of a weight, in the order of ProductKernels.
struct PackQuantizedTask {
  const QuantizedMatrix& weight;
  std::int64_t first;  // of the columns of the operand: a line of the weight, or a number of lines
  std::int64_t cols;
  std::int64_t terms;
  std::int64_t elements;  // of terms in order
  std::int64_t width;     // of a panel
  void* target;
};
// One function packs numbers of 8 bits, one those of 4; null where the set has none.
struct PackQuantized {
  void (*of[2])(const PackQuantizedTask& task, std::int64_t begin, std::int64_t end);
};

struct QuantizedKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  std::int64_t step;  // groups that few rows take are multiples of it

  void (*arrange[kDTypes])(const QuantizedTask& task);
  // Columns [begin, end) of the result, in units of kFewCols; of 8 bits and of 4.
  void (*multiply[2])(const QuantizedTask& task, std::int64_t begin, std::int64_t end);
  // Lines [begin, end), counted from the first.
  void (*dequantize[kDTypes])(const DequantizeTask& task, std::int64_t begin, std::int64_t end);
  // Groups are multiples of `step`, and so are columns or terms that are numbers of a line.
  PackQuantized numbers_of_terms;  // float32, where terms are lines
  PackQuantized pairs_of_terms;    // pairs of bfloat16, where terms are lines: in elements
  PackQuantized pairs_of_lines;    // or columns: in squares of 16
};

TFK_DECLARE_PER_ISA(extern const QuantizedKernels quantized_kernels)

}  // namespace transformer_kernels::cpu
