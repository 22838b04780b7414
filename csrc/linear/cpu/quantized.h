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

struct QuantizedKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  std::int64_t step;  // groups that few rows take are multiples of it

  void (*arrange[kDTypes])(const QuantizedTask& task);
  // Columns [begin, end) of the result, in units of kFewCols; of 8 bits and of 4.
  void (*multiply[2])(const QuantizedTask& task, std::int64_t begin, std::int64_t end);
  // Lines [begin, end), counted from the first.
  void (*dequantize[kDTypes])(const DequantizeTask& task, std::int64_t begin, std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const QuantizedKernels quantized_kernels)

}  // namespace transformer_kernels::cpu
