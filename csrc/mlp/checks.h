// SPDX-License-Identifier: MIT
// The arguments of both passes, checked before anything is written.
#pragma once

#include "transformer_kernels/mlp/mlp.h"

namespace transformer_kernels {

void check(const char* op, const Context& context, const MlpForward& arguments, bool gated);
void check(const char* op, const Context& context, const MlpBackward& arguments, bool gated);

}  // namespace transformer_kernels
