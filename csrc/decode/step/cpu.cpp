// SPDX-License-Identifier: MIT
#include "decode/step/kernels.h"

namespace transformer_kernels::cpu {

const decode::StepKernels& step_kernels_in_use() {
  constexpr const decode::StepKernels* kTables[] = TFK_PER_ISA(step_kernels);
  return *kTables[static_cast<int>(isa())];
}

}  // namespace transformer_kernels::cpu
