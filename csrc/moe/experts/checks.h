// SPDX-License-Identifier: MIT
// The room of the experts: host code that calls ops of groups of rows one after the other. This
// header has its checks, which come before anything is written.
#pragma once

#include "transformer_kernels/moe/experts.h"

namespace transformer_kernels {

void check(const char* op, const Context& context, const MoeExpertsForward& arguments);
void check(const char* op, const Context& context, const MoeExpertsBackward& arguments);

}  // namespace transformer_kernels
