// SPDX-License-Identifier: MIT
// Runs a raw op on the FPGA array that the environment names.
#pragma once

#include "torch/fields.h"
#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::torch_ops {

// An op needs one member more than RawOp asks for: Op::head_dim(arguments) is the head dim that the
// array has to have, or 0.
template <class Op>
struct OnArray : Op {
  static constexpr const char* kPass = "_forward_fpga";

  static void call(const Context& context, const typename Op::Arguments& arguments) {
    Context on_array = context;
    on_array.array = &fpga::environment_array(Op::kOp, Op::head_dim(arguments));
    Op::kCall(on_array, arguments);
  }
  static constexpr auto* kCall = call;
};

// The raw ops of a list, whose memory is the CPU's.
#define TFK_RAW_OPS_ON_ARRAY(Ops)                                           \
  STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); } \
  STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }

}  // namespace transformer_kernels::torch_ops
