// SPDX-License-Identifier: MIT
// Products whose epilogues no op has, for the tests of their parts, on each engine that runs
// chains. Operands have their terms together; results and what is read have 16-byte aligned rows.
#pragma once

#include "linear/cuda/engines.h"
#include "pointwise/dropout_problem.h"

namespace transformer_kernels::testing {

struct EpilogueProbe {
  const char* name;  // of the engine
  const char* (*refusal)(const Context&, const Product&);

  // out = dropout(sum + bias) + residual
  void (*dropout_add)(const Context&, const Product&, const DropoutDraw&, const Matrix& residual);

  // out = dropout(relu(z)) + residual, kept = z, z = sum + bias; dbias = sums of out's columns
  void (*relu_dropout_add)(const Context&, const Product&, const DropoutDraw&,
                           const Matrix& residual);

  // out = (sum + bias) factor of the row; dbias = sums of out's columns
  void (*scale_rows)(const Context&, const Product&, const float* factors);
};

#if TFK_CUDA_SM90A
extern const EpilogueProbe kHopperProbe;
#endif
#if TFK_CUDA_SM80
extern const EpilogueProbe kAmpereProbe;
#endif

}  // namespace transformer_kernels::testing
