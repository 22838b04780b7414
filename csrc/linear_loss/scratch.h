// SPDX-License-Identifier: MIT
// Tensors of a call's own, on any device, for passes that are composed of other ops.
#pragma once

#include <memory>

#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// Memory of `count` numbers from the context's workspace, in whole vectors: kernels may read,
// though not use, what lies behind the last one. A call that only checks has an address without
// memory.
class ScratchTensor {
 public:
  ScratchTensor(const char* op, const Context& context, DType dtype, std::int64_t count);

  // All of it as (count,).
  TensorView numbers() const;
  // The first rows * step numbers, of which `columns` of each row are the matrix.
  TensorView matrix(std::int64_t rows, std::int64_t columns, std::int64_t step) const;

 private:
  std::shared_ptr<void> memory_;
  DType dtype_;
  Device device_;
  std::int64_t count_;
};

// Rounds sums in float32, a ScratchTensor's, to the 16 bits of `out`, which is contiguous.
void round_sums(const char* op, const Context& context, const ScratchTensor& sums,
                const TensorView& out);

}  // namespace transformer_kernels
