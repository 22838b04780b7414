// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/gated_linear.h"

#include "pointwise/problem.h"
#include "torch/linear/rows.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kName = "gated_linear";

// The number of an activation: its place among those of a gate.
Pointwise gate_of(const char* name, std::int64_t number) {
  std::int64_t left = number;
  for (int i = 0; i < kPointwiseCount && left >= 0; ++i) {
    const auto op = static_cast<Pointwise>(i);
    if (is_gated(op) && left-- == 0) return op;
  }
  check_value(false, name, ": activation is ", number, ", expected the number of one");
  return {};
}

// The second half along a dimension; the first is left in `both`.
TensorView split(TensorView& both, int dimension) {
  const std::int64_t count = both.sizes[dimension];
  both.sizes[dimension] = count / 2;
  TensorView second = both;
  second.data =
      static_cast<std::byte*>(both.data) +
      count / 2 * both.strides[dimension] * static_cast<std::int64_t>(size_of(both.dtype));
  return second;
}

struct Arguments : GatedLinearForward {
  std::int64_t number;  // of the activation
  bool keep;
};

// Without up_weight the weight has the rows of both, as the bias has, and gate the columns of both.
struct Forward {
  using Arguments = torch_ops::Arguments;
  static constexpr const char* kOp = kName;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple(tensor("x", &GatedLinearForward::x, with_aligned_rows),
                 tensor("weight", &GatedLinearForward::weight),
                 optional("up_weight", &GatedLinearForward::up_weight),
                 parameter("bias", &GatedLinearForward::bias),
                 parameter("up_bias", &GatedLinearForward::up_bias),
                 integer("activation", &Arguments::number), flag("keep", &Arguments::keep));
  static std::string name() { return "gated_linear_forward"; }
  static std::string returns() { return "(Tensor y, Tensor gate, Tensor up)"; }

  static void split_all(Arguments& a) {
    check_value(!a.up_bias.defined(), kName,
                ": up_bias is present, expected none (bias is of gate and up)");
    if (a.x.rank == 0 || a.weight.rank == 0) return;  // found with all else
    const std::int64_t lines = a.weight.sizes[0];
    check_value(lines % 2 == 0, kName, ": weight has ", lines,
                " rows, expected an even number (those of gate, then of up)");
    a.up_weight = split(a.weight, 0);
    if (a.bias.defined()) {
      check_value(a.bias.rank == 1 && a.bias.sizes[0] == lines, kName, ": bias has shape ",
                  shape_of(a.bias), ", expected (", lines, ",) (the rows of weight)");
      a.up_bias = split(a.bias, 0);
    }
    if (a.keep) a.up = split(a.gate, a.gate.rank - 1);
  }

  static auto run(const Context& context, Arguments& a) {
    a.activation = gate_of(kName, a.number);
    const bool in_one = !a.up_weight.defined();
    const std::int64_t lines = a.weight.rank > 0 ? a.weight.sizes[0] : 0;
    const TensorView kept = with_columns(a.x, lines);
    const Tensor gate = result_if(a.keep, a.gate, kept, a.x);
    const Tensor up = result_if(a.keep && !in_one, a.up, kept, a.x);
    if (in_one) split_all(a);
    auto y = result(a.y, new_rows_like, with_columns(a.x, in_one ? lines / 2 : lines));
    gated_linear_forward(context, a);
    return std::tuple_cat(y, std::tuple(gate, up));
  }
};

struct DgatedArguments : LinearDgated {
  std::int64_t number;
  bool need_h;
};

struct Dgated {
  using Arguments = DgatedArguments;
  static constexpr const char* kOp = "linear_dgated";
  static constexpr auto kLike = &Arguments::gate;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &LinearDgated::dy, with_aligned_rows), tensor("weight", &LinearDgated::weight),
      tensor("gate", &LinearDgated::gate, with_aligned_rows),
      tensor("up", &LinearDgated::up, with_aligned_rows), parameter("bias", &LinearDgated::bias),
      parameter("up_bias", &LinearDgated::up_bias), integer("activation", &DgatedArguments::number),
      flag("need_h", &DgatedArguments::need_h));
  static std::string name() { return kOp; }
  static std::string returns() { return "(Tensor dgate, Tensor dup, Tensor h)"; }

  static auto run(const Context& context, Arguments& a) {
    a.activation = gate_of(kOp, a.number);
    auto gradients = std::tuple_cat(result(a.dgate, new_rows_like, a.gate),
                                    result(a.dup, new_rows_like, a.gate));
    const Tensor h = result_if(a.need_h, a.h, a.gate, a.gate);
    linear_dgated(context, a);
    return std::tuple_cat(gradients, std::tuple(h));
  }
};

using Ops = RawOps<Forward, Dgated>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) { Ops::implement(m); }

}  // namespace transformer_kernels::torch_ops
