// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/gated_linear.h"

#include "core/backends.h"
#include "linear/gated_problem.h"
#include "linear/operands.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "gated_linear";
constexpr const char* kDgated = "linear_dgated";
constexpr Backends<GatedLinearProblem> kForward{
    .cpu = cpu::gated_linear_forward, .cuda = kHasCuda ? cuda::gated_linear_forward : nullptr};
constexpr Backends<LinearDgatedProblem> kDgatedBackends{
    .cpu = cpu::linear_dgated, .cuda = kHasCuda ? cuda::linear_dgated : nullptr};

DType dtype_of_biases(const char* op, const TensorView& bias, const TensorView& up_bias,
                      DType otherwise) {
  if (!bias.defined()) return up_bias.defined() ? up_bias.dtype : otherwise;
  check_type(!up_bias.defined() || bias.dtype == up_bias.dtype, op, ": up_bias is ",
             name_of(up_bias.dtype), ", expected ", name_of(bias.dtype), " (the dtype of bias)");
  return bias.dtype;
}

void check_gate(const char* op, Pointwise activation) {
  check_value(is_gated(activation), op, ": activation is ", name_of(activation),
              ", expected a gated one");
}

GatedLinearProblem check(const Context& context, const GatedLinearForward& a) {
  Operands operands(kOp, context, a.x, a.weight);
  check_gate(kOp, a.activation);
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
  p.bias_dtype = dtype_of_biases(kOp, a.bias, a.up_bias, a.x.dtype);
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

LinearDgatedProblem check(const Context& context, const LinearDgated& a) {
  Operands operands(kDgated, context, a.gate, a.weight, kGate);
  check_gate(kDgated, a.activation);
  LinearDgatedProblem p{};
  p.activation = a.activation;
  p.dtype = a.gate.dtype;
  p.rows = operands.rows();
  p.terms = operands.cols();
  p.cols = operands.terms();
  p.dy = operands.input("dy", a.dy, p.terms);
  p.weight = operands.weight(a.weight);
  p.gate = operands.input("gate", a.gate, p.cols);
  p.up = operands.input("up", a.up, p.cols);
  p.bias = operands.bias_of_columns_if_present(a.bias, "bias");
  p.up_bias = operands.bias_of_columns_if_present(a.up_bias, "up_bias");
  p.bias_dtype = dtype_of_biases(kDgated, a.bias, a.up_bias, p.dtype);
  check_value(a.dgate.defined() && a.dup.defined(), kDgated, ": ",
              a.dgate.defined() ? "dup" : "dgate", " is missing");
  p.dgate = operands.output_over("dgate", a.dgate, p.cols, a.gate);
  p.dup = operands.output_over("dup", a.dup, p.cols, a.up);
  p.h = operands.output_if_present("h", a.h, p.cols);
  operands.check_overlaps();
  return p;
}

}  // namespace

std::string describe(const GatedLinearProblem& p) {
  return concat("forward ", name_of(p.dtype), " ", p.rows, "x", p.terms, "x", p.cols, " ",
                name_of(p.activation), p.bias != nullptr || p.up_bias != nullptr ? " + bias" : "",
                p.keeps() ? ", kept" : "");
}

std::string describe(const LinearDgatedProblem& p) {
  return concat("backward ", name_of(p.dtype), " ", p.rows, "x", p.terms, "x", p.cols, " ",
                name_of(p.activation), p.bias != nullptr || p.up_bias != nullptr ? " + bias" : "",
                p.h.data != nullptr ? " h" : "");
}

void gated_linear_forward(const Context& context, const GatedLinearForward& arguments) {
  const GatedLinearProblem problem = check(context, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on(kOp, kForward, context, problem);
}

void linear_dgated(const Context& context, const LinearDgated& arguments) {
  const LinearDgatedProblem problem = check(context, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on(kDgated, kDgatedBackends, context, problem);
}

}  // namespace transformer_kernels
