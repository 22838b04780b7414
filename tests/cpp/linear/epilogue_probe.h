// SPDX-License-Identifier: MIT
// Products on Hopper whose epilogues no op has, for the tests of their parts. Operands have their
// terms together; results and what is read have 16-byte aligned rows.
#pragma once

#include "linear/product.h"
#include "pointwise/dropout_problem.h"

namespace transformer_kernels::testing {

// out = dropout(sum + bias) + residual
void multiply_dropout_add(const Context& context, const Product& p, const DropoutDraw& draw,
                          const Matrix& residual);

// out = dropout(relu(z)) + residual, kept = z, z = sum + bias; dbias = sums of out's columns
void multiply_relu_dropout_add(const Context& context, const Product& p, const DropoutDraw& draw,
                               const Matrix& residual);

// out = (sum + bias) factor of the row; dbias = sums of out's columns
void multiply_scale_rows(const Context& context, const Product& p, const float* factors);

}  // namespace transformer_kernels::testing
