// SPDX-License-Identifier: MIT
// The family's CUDA engines, best first: the problems that each takes and its entry point. No CUDA
// header, so that the choice is tested without a GPU.
#pragma once

#include "attention/problem.h"
#include "core/check.h"
#include "core/cuda/device.h"

namespace transformer_kernels::cuda {

template <class Problem>
struct AttentionEngine {
  const char* name;
  BlockSizes block;  // of a CTA
  // Null where the engine runs the problem on the device, else why not.
  const char* (*refusal)(const Problem& problem, const DeviceLimits& device);
  void (*run)(const Context& context, const Problem& problem);
};

template <class Problem>
std::string name_of(const AttentionEngine<Problem>* engine) {
  return concat(engine->name, " ", describe(engine->block));
}

}  // namespace transformer_kernels::cuda
