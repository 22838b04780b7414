// SPDX-License-Identifier: MIT
// The instruction sets of the CPU, for Python. The stable ABI passes strings as tensors of bytes.
#include "transformer_kernels/cpu.h"

#include <cstring>

#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

// The one in use, and then all, one a line.
Tensor cpu_instruction_sets() {
  return translate_errors([] {
    std::string text = transformer_kernels::cpu_instruction_set();
    for (const std::string& name : transformer_kernels::cpu_instruction_sets()) text += '\n' + name;
    const std::int64_t sizes[] = {static_cast<std::int64_t>(text.size())};
    const Tensor tensor = empty({}, sizes, DType::kUInt8);
    std::memcpy(tensor.data_ptr(), text.data(), text.size());
    return tensor;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { m.def("cpu_instruction_sets() -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CompositeExplicitAutograd, m) {
  m.impl("cpu_instruction_sets", TORCH_BOX(&cpu_instruction_sets));
}

}  // namespace transformer_kernels::torch_ops
