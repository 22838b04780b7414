// SPDX-License-Identifier: MIT
// Per-column vectors of row ops on the CPU: parameters (weight, bias) and sums over rows.
#pragma once

#include "core/cpu/isa.h"
#include "core/cpu/scratch.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels::cpu {

// `fill` stands where there is no data. -0 changes nothing that it is added to.
struct Parameter {
  const void* data;
  std::int64_t cols;
  bool is_wide;  // data is of accumulate_t<dtype of the rows>, not of that dtype
  double fill = -0.0;
  double offset = -0.0;  // added to each element
};

// A parameter as kernels read it, a wide row (simd.h), made once a call instead of once a row: the
// caller's memory where elements of rows are as wide as the lanes they are computed in, else a
// copy.
class WideParameter {
 public:
  WideParameter(const Context& context, DType dtype, const Parameter& parameter);

  const void* data() const { return in_place_ != nullptr ? in_place_ : copy_.data(); }

 private:
  const void* in_place_;
  Scratch copy_;
};

// For sums over rows, rows are cut into chunks that depend on the shape alone. Each chunk sums its
// rows in order, and the sums are added in chunk order: the result is the same for any number of
// threads.
std::int64_t rows_per_chunk(std::int64_t rows, std::int64_t cols, DType dtype);

// The chunks' sums of two parameters' gradients, and where their totals go.
struct ColumnSums {
  DType dtype;  // of the rows
  std::int64_t cols;
  std::int64_t chunks;
  const void* partials;      // [chunks][2][wide_cols(cols)], of accumulate_dtype(dtype)
  void* totals[2];           // null if not wanted
  bool is_wide;              // totals are of accumulate_dtype(dtype), not of dtype
  bool accumulates = false;  // totals are added to what is there
};
void add_chunks(const Context& context, const ColumnSums& sums);

// One of the two: `partials` points to its part of the first chunk.
struct ColumnSum {
  const void* partials;
  std::int64_t chunks;
  std::int64_t stride;  // from one chunk's part to the next
  void* total;
  bool is_wide;
  bool accumulates;
};

struct ColumnKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType: of the rows

  void (*widen[kDTypes])(const Parameter& parameter, void* wide);
  // Columns [begin, end); begin is a multiple of wide_cols(1).
  void (*add_chunks[kDTypes])(const ColumnSum& sum, std::int64_t begin, std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const ColumnKernels column_kernels)

}  // namespace transformer_kernels::cpu
