// SPDX-License-Identifier: MIT
// The CUDA engines of groups of rows. Offsets lie in device memory, where no host reads them.
#pragma once

#include "linear/grouped_problem.h"

namespace transformer_kernels::cuda {

// Hopper's engine (sm90/grouped_sm90a.cu). Why it does not take a problem; null where it does.
const char* hopper_refusal(const Context& context, const GroupedProduct& p);
const char* hopper_refusal(const Context& context, const GroupedGradient& p);
const char* hopper_refusal(const Context& context, const GroupedGatedProblem& p);
const char* hopper_refusal(const Context& context, const GroupedDgatedProblem& p);
void run_hopper(const Context& context, const GroupedProduct& p);
void run_hopper(const Context& context, const GroupedGradient& p);
void run_hopper(const Context& context, const GroupedGatedProblem& p);
void run_hopper(const Context& context, const GroupedDgatedProblem& p);

// For every device, dtype and stride (plain/grouped_typed.cu).
template <class T>
void run_plain(const Context& context, const GroupedProduct& p);
template <class T>
void run_plain(const Context& context, const GroupedGradient& p);
template <class T>
void run_plain(const Context& context, const GroupedDgatedProblem& p);
template <class T>
void run_plain(const Context& context, const GroupedBiasGradient& p);

}  // namespace transformer_kernels::cuda
