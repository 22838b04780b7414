// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/linear.h"

#include "core/backends.h"
#include "linear/operands.h"
#include "linear/product.h"
#include "pointwise/problem.h"

namespace transformer_kernels {
namespace {

constexpr Backends<LinearForwardProblem> kForward{
    .cpu = cpu::linear_forward, .cuda = kHasCuda ? cuda::linear_forward : nullptr};
constexpr Backends<LinearBackwardProblem> kBackward{
    .cpu = cpu::linear_backward, .cuda = kHasCuda ? cuda::linear_backward : nullptr};
constexpr Backends<LinearDactProblem> kDact{.cpu = cpu::linear_dact,
                                            .cuda = kHasCuda ? cuda::linear_dact : nullptr};

template <class Arguments>
const char* name_of_op(const Arguments& a) {
  return a.activation ? "linear_act" : "linear";
}

void check_activation(const char* op, const std::optional<Pointwise>& activation) {
  if (!activation) return;
  check_value(!is_gated(*activation), op, ": activation is ", name_of(*activation),
              ", expected one of a single tensor");
}

LinearForwardProblem check(const Context& context, const LinearForward& a) {
  Operands operands(name_of_op(a), context, a.x, a.weight);
  check_activation(name_of_op(a), a.activation);
  check_algorithm(name_of_op(a), context, a.algorithm);
  LinearForwardProblem p{};
  p.dtype = a.x.dtype;
  p.bias_dtype = a.bias.defined() ? a.bias.dtype : a.x.dtype;
  p.rows = operands.rows();
  p.terms = operands.terms();
  p.cols = operands.cols();
  p.activation = a.activation;
  p.x = operands.input("x", a.x, p.terms);
  p.weight = operands.weight(a.weight);
  p.packed = operands.packed_if_present(a.packed);
  p.bias = operands.bias_if_present(a.bias);
  p.z = operands.output_if_present("z", a.z, p.cols);
  check_value(a.y.defined(), name_of_op(a), ": y is missing");
  p.y = operands.output_if_present("y", a.y, p.cols);
  p.algorithm = a.algorithm;
  operands.check_overlaps();
  return p;
}

// A view with the shape and the dtype of the weight, which may be absent. Elements are not read.
TensorView like_weight(const LinearBackward& a) {
  if (a.weight.defined() || a.dx.defined() || !a.dweight.defined()) return a.weight;
  TensorView like = a.dweight;
  like.dtype = a.x.dtype;
  return like;
}

LinearBackwardProblem check(const Context& context, const LinearBackward& a) {
  const TensorView weight = like_weight(a);
  Operands operands(name_of_op(a), context, a.x, weight);
  check_activation(name_of_op(a), a.activation);
  check_value(a.activation.has_value() == a.z.defined(), name_of_op(a), ": z is ",
              a.z.defined() ? "present, expected none" : "missing, expected it",
              a.activation ? " (with an activation)" : " (without an activation)");
  check_algorithm(name_of_op(a), context, a.dx_algorithm);
  check_algorithm(name_of_op(a), context, a.dweight_algorithm);
  LinearBackwardProblem p{};
  p.dtype = a.x.dtype;
  p.bias_dtype = a.dbias.defined() ? a.dbias.dtype : a.x.dtype;
  p.dweight_dtype = a.dweight.defined() ? a.dweight.dtype : a.x.dtype;
  p.rows = operands.rows();
  p.terms = operands.terms();
  p.cols = operands.cols();
  p.activation = a.activation;
  p.dy = operands.input("dy", a.dy, p.cols);
  p.x = operands.input("x", a.x, p.terms);
  if (a.weight.defined()) p.weight = operands.weight(a.weight);
  if (a.z.defined()) p.z = operands.input("z", a.z, p.cols);
  p.dx = operands.output_if_present("dx", a.dx, p.terms);
  p.dweight = operands.dweight_if_present(a.dweight, weight);
  p.dbias = operands.dbias_if_present(a.dbias);
  p.dx_algorithm = a.dx_algorithm;
  p.dweight_algorithm = a.dweight_algorithm;
  p.accumulates_dx = a.accumulate_dx;
  p.accumulates_dweight = a.accumulate_dweight;
  p.accumulates_dbias = a.accumulate_dbias;
  operands.check_overlaps();
  return p;
}

LinearDactProblem check(const Context& context, const LinearDact& a) {
  constexpr const char* kOp = "linear_dact";
  Operands operands(kOp, context, a.z, a.weight, kZ);
  check_activation(kOp, a.activation);
  LinearDactProblem p{};
  p.dtype = a.z.dtype;
  p.bias_dtype = a.dbias.defined() ? a.dbias.dtype : a.z.dtype;
  p.rows = operands.rows();
  p.terms = operands.cols();
  p.cols = operands.terms();
  p.activation = a.activation;
  p.dy = operands.input("dy", a.dy, p.terms);
  p.weight = operands.weight(a.weight);
  p.z = operands.input("z", a.z, p.cols);
  check_value(a.dz.defined(), kOp, ": dz is missing");
  p.dz = operands.output_over("dz", a.dz, p.cols, a.z);
  p.h = operands.output_if_present("h", a.h, p.cols);
  p.dbias = operands.dbias_of_columns_if_present(a.dbias);
  p.accumulates_dbias = a.accumulate_dbias;
  operands.check_overlaps();
  return p;
}

template <class Problem>
std::string described(const char* pass, const Problem& p) {
  return concat(pass, " ", name_of(p.dtype), " ", p.rows, "x", p.terms, "x", p.cols,
                p.activation ? concat(" + ", name_of(*p.activation)) : "");
}

}  // namespace

std::string describe(const Product& p) {
  return concat("product ", name_of(p.dtype), " ", p.rows, "x", p.terms, "x", p.cols,
                p.out_dtype != p.dtype ? concat(" to ", name_of(p.out_dtype)) : "",
                p.accumulates ? ", accumulated" : "");
}

std::string describe(const LinearForwardProblem& p) {
  return concat(described("forward", p), p.bias != nullptr ? " + bias" : "");
}

std::string describe(const LinearBackwardProblem& p) {
  const auto output = [](const void* data, const char* name, bool accumulates) {
    return data == nullptr ? "" : concat(" ", name, accumulates ? " (accumulated)" : "");
  };
  return concat(described("backward", p), output(p.dx.data, "dx", p.accumulates_dx),
                output(p.dweight.data, "dweight", p.accumulates_dweight),
                output(p.dbias, "dbias", p.accumulates_dbias));
}

std::string describe(const LinearDactProblem& p) {
  return concat("backward ", name_of(p.dtype), " ", p.rows, "x", p.terms, "x", p.cols, " + ",
                name_of(p.activation), p.h.data != nullptr ? " h" : "",
                p.dbias != nullptr ? " dbias" : "");
}

void linear_forward(const Context& context, const LinearForward& arguments) {
  const LinearForwardProblem problem = check(context, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on(name_of_op(arguments), kForward, context, problem);
}

void linear_backward(const Context& context, const LinearBackward& arguments) {
  run_on(name_of_op(arguments), kBackward, context, check(context, arguments));
}

void linear_dact(const Context& context, const LinearDact& arguments) {
  const LinearDactProblem problem = check(context, arguments);
  if (problem.cols == 0 || (problem.rows == 0 && problem.dbias == nullptr)) return;
  run_on("linear_dact", kDact, context, problem);
}

}  // namespace transformer_kernels
