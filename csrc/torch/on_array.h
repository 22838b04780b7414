// SPDX-License-Identifier: MIT
// Runs a raw op on the FPGA array that the environment names.
#pragma once

#include <string>

#include "torch/fields.h"
#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::torch_ops {

// An op needs one member more than RawOp asks for: Op::head_dim(arguments) is the head dim that the
// array has to have, or 0.
template <class Op>
struct OnArray : Op {
  static std::string name() { return Op::name() + "_fpga"; }

  static auto run(const Context& context, typename Op::Arguments& arguments) {
    Context on_array = context;
    on_array.array = &fpga::environment_array(Op::kOp, Op::head_dim(arguments));
    return Op::run(on_array, arguments);
  }
};

}  // namespace transformer_kernels::torch_ops
