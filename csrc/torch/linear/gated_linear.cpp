// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/gated_linear.h"

#include "torch/linear/operands.h"
#include "torch/linear/rows.h"

namespace transformer_kernels::torch_ops {
namespace {

struct ForwardArguments : GatedLinearForward {
  bool keep;

  bool in_one() const { return !up_weight.defined(); }
  std::int64_t lines() const { return weight.rank > 0 ? weight.sizes[0] : 0; }
};

// Without up_weight the weight has the rows of both, as the bias has, and gate the columns of both.
struct Forward {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = "gated_linear";
  static constexpr const char* kPass = "_forward";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_aligned_rows), tensor("weight", &Arguments::weight),
      optional("up_weight", &Arguments::up_weight), parameter("bias", &Arguments::bias),
      parameter("up_bias", &Arguments::up_bias),
      choice("activation", &Arguments::activation, gate_of), flag("keep", &Arguments::keep));
  static constexpr auto kResults = std::tuple(
      result("y", &Arguments::y,
             [](const Arguments& a) {
               return rows_like(with_columns(a.x, a.in_one() ? a.lines() / 2 : a.lines()));
             }),
      result("gate", &Arguments::gate,
             [](const Arguments& a) {
               return a.keep ? rows_like(with_columns(a.x, a.lines())) : TensorView{};
             }),
      result("up", &Arguments::up, [](const Arguments& a) {
        return a.keep && !a.in_one() ? rows_like(with_columns(a.x, a.lines())) : TensorView{};
      }));

  static void prepare(Arguments& a) {
    if (!a.in_one()) return;
    check_value(!a.up_bias.defined(), kOp,
                ": up_bias is present, expected none (bias is of gate and up)");
    if (a.x.rank == 0 || a.weight.rank == 0) return;  // found with all else
    const std::int64_t lines = a.weight.sizes[0];
    check_value(lines % 2 == 0, kOp, ": weight has ", lines,
                " rows, expected an even number (those of gate, then of up)");
    const bool fits = !a.bias.defined() || (a.bias.rank == 1 && a.bias.sizes[0] == lines);
    if (!fits) {
      check_value(false, kOp, ": bias has shape ", shape_of(a.bias), ", expected (", lines,
                  ",) (the rows of weight)");
    }
  }

  static void call(const Context& context, Arguments& a) {
    if (a.in_one() && a.x.rank > 0 && a.weight.rank > 0) {
      a.up_weight = split(a.weight, 0);
      if (a.bias.defined()) a.up_bias = split(a.bias, 0);
      if (a.keep) a.up = split(a.gate, a.gate.rank - 1);
    }
    gated_linear_forward(context, a);
  }
  static constexpr auto* kCall = call;
};

struct DgatedArguments : LinearDgated {
  bool need_h;
};

struct Dgated {
  using Arguments = DgatedArguments;
  static constexpr const char* kOp = "linear_dgated";
  static constexpr const char* kPass = "";
  static constexpr auto* kCall = linear_dgated;
  static constexpr auto kLike = &Arguments::gate;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_aligned_rows), tensor("weight", &Arguments::weight),
      tensor("gate", &Arguments::gate, with_aligned_rows),
      tensor("up", &Arguments::up, with_aligned_rows), parameter("bias", &Arguments::bias),
      parameter("up_bias", &Arguments::up_bias),
      choice("activation", &Arguments::activation, gate_of), flag("need_h", &Arguments::need_h));
  static constexpr auto kResults =
      std::tuple(result("dgate", &Arguments::dgate, rows_like, &Arguments::gate),
                 result("dup", &Arguments::dup, rows_like, &Arguments::gate),
                 result_if(&Arguments::need_h, "h", &Arguments::h, rows_like, &Arguments::gate));
};

using Ops = RawOps<Forward, Dgated>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
