// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/gated_linear.h"

#include "core/backends.h"
#include "linear/gated_problem.h"
#include "linear/linear_operands.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "gated_linear";
constexpr Backends<GatedLinearProblem> kForward{
    .cpu = cpu::gated_linear_forward, .cuda = kHasCuda ? cuda::gated_linear_forward : nullptr};

DType dtype_of_biases(const GatedLinearForward& a) {
  if (!a.bias.defined() || !a.up_bias.defined()) {
    return (a.bias.defined() ? a.bias : a.up_bias.defined() ? a.up_bias : a.x).dtype;
  }
  check_type(a.bias.dtype == a.up_bias.dtype, kOp, ": up_bias is ", name_of(a.up_bias.dtype),
             ", expected ", name_of(a.bias.dtype), " (the dtype of bias)");
  return a.bias.dtype;
}

GatedLinearProblem check(const Context& context, const GatedLinearForward& a) {
  Operands operands(kOp, context, a.x, a.weight);
  check_value(is_gated(a.activation), kOp, ": activation is ", name_of(a.activation),
              ", expected a gated one");
  GatedLinearProblem p{};
  p.activation = a.activation;
  p.dtype = a.x.dtype;
  p.rows = operands.rows();
  p.terms = operands.terms();
  p.cols = operands.cols();
  p.x = operands.input("x", a.x, p.terms);
  p.weight = operands.weight(a.weight);
  p.up_weight = operands.weight_like("up_weight", a.up_weight, a.weight);
  p.bias = operands.bias_if_present(a.bias);
  p.up_bias = operands.bias_if_present(a.up_bias, "up_bias");
  p.bias_dtype = dtype_of_biases(a);
  check_value(a.gate.defined() == a.up.defined(), kOp, ": up is ",
              a.up.defined() ? "present, expected none" : "missing, expected it",
              " (gate and up are kept together)");
  p.gate = operands.output_if_present("gate", a.gate, p.cols);
  p.up = operands.output_if_present("up", a.up, p.cols);
  check_value(a.y.defined(), kOp, ": y is missing");
  p.y = operands.output_if_present("y", a.y, p.cols);
  operands.check_overlaps();
  return p;
}

}  // namespace

std::string describe(const GatedLinearProblem& p) {
  return concat("forward ", name_of(p.dtype), " ", p.rows, "x", p.terms, "x", p.cols, " ",
                name_of(p.activation), p.bias != nullptr || p.up_bias != nullptr ? " + bias" : "",
                p.keeps() ? ", kept" : "");
}

void gated_linear_forward(const Context& context, const GatedLinearForward& arguments) {
  const GatedLinearProblem problem = check(context, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on(kOp, kForward, context, problem);
}

}  // namespace transformer_kernels
