// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/grouped_linear.h"

#include "core/backends.h"
#include "linear/grouped_operands.h"
#include "pointwise/problem.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "grouped_linear";
constexpr const char* kGated = "grouped_gated_linear";
constexpr const char* kDgated = "grouped_linear_dgated";

constexpr Backends<GroupedProduct> kForward{
    .cpu = cpu::grouped_linear_forward,
    .cuda = kHasCuda ? cuda::grouped_linear_forward : nullptr,
    .numbers = cpu::check_numbers};
constexpr Backends<GroupedBackwardProblem> kBackward{
    .cpu = cpu::grouped_linear_backward,
    .cuda = kHasCuda ? cuda::grouped_linear_backward : nullptr,
    .numbers = cpu::check_numbers};
constexpr Backends<GroupedGatedProblem> kGatedForward{
    .cpu = cpu::grouped_gated_linear_forward,
    .cuda = kHasCuda ? cuda::grouped_gated_linear_forward : nullptr,
    .numbers = cpu::check_numbers};
constexpr Backends<GroupedDgatedProblem> kDgatedBackends{
    .cpu = cpu::grouped_linear_dgated,
    .cuda = kHasCuda ? cuda::grouped_linear_dgated : nullptr,
    .numbers = cpu::check_numbers};

// The rows of a tensor that has to be there, before its shape is known to be right.
std::int64_t rows_of(const char* op, const char* name, const TensorView& view) {
  check_value(view.defined(), op, ": ", name, " is missing");
  check_value(view.rank >= 1, op, ": ", name, " has 0 dimensions, expected at least 1");
  return view.sizes[0];
}
std::int64_t cols_of(const char* op, const char* name, const TensorView& view) {
  check_value(view.defined(), op, ": ", name, " is missing");
  check_value(view.rank == 2, op, ": ", name, " has ", view.rank, " dimensions, expected 2");
  return view.sizes[1];
}
// Rows of a weight, or -1 where it has none, so that its own check says what is wrong.
std::int64_t rows_of_weight(const TensorView& weight) {
  return weight.rank == 3 ? weight.sizes[1] : -1;
}

DType dtype_or(const TensorView& view, DType otherwise) {
  return view.defined() ? view.dtype : otherwise;
}

GroupedProduct check(const Context& context, const GroupedLinearForward& a) {
  GroupedOperands operands(kOp, context, kX, a.x, a.offsets, rows_of(kOp, "y", a.y), "y");
  GroupedProduct p{.op = kOp, .dtype = a.x.dtype, .groups = operands.groups()};
  p.bias_dtype = dtype_or(a.bias, p.dtype);
  p.terms = cols_of(kOp, "x", a.x);
  p.a = operands.input("x", a.x, p.terms, "x_rows", a.x_rows);
  p.b = operands.weight("weight", a.weight, -1, p.terms).transposed();
  p.cols = rows_of_weight(a.weight);
  p.bias = operands.bias_if_present("bias", a.bias, p.cols);
  p.factors = operands.factors_if_present(a.factors);
  p.out = operands.output("y", a.y, p.cols);
  operands.check_overlaps();
  return p;
}

GroupedBackwardProblem check(const Context& context, const GroupedLinearBackward& a) {
  const std::int64_t rows =
      a.dy_rows.defined() ? rows_of(kOp, "dy_rows", a.dy_rows) : rows_of(kOp, "dy", a.dy);
  GroupedOperands operands(kOp, context, kDy, a.dy, a.offsets, rows,
                           a.dy_rows.defined() ? "dy_rows" : "dy");
  const DType dtype = a.dy.dtype;
  const std::int64_t cols = cols_of(kOp, "dy", a.dy);
  const IndexedRows dy = operands.input("dy", a.dy, cols, "dy_rows", a.dy_rows);
  const void* const factors = operands.factors_if_present(a.factors);
  GroupedBackwardProblem p{
      .dx = {.op = kOp, .dtype = dtype, .groups = operands.groups(), .a = dy, .factors = factors},
      .dweight = {.op = kOp,
                  .dtype = dtype,
                  .groups = operands.groups(),
                  .rows = cols,
                  .a = dy,
                  .factors = factors},
      .dbias = {.op = kOp,
                .dtype = dtype,
                .bias_dtype = dtype_or(a.dbias, dtype),
                .groups = operands.groups(),
                .cols = cols,
                .a = dy,
                .factors = factors,
                .dbias = operands.dbias_if_present("dbias", a.dbias, cols),
                .accumulates = a.accumulate_dbias}};
  if (a.dx.defined()) {
    p.dx.terms = cols;
    p.dx.cols = cols_of(kOp, "dx", a.dx);
    check_value(a.weight.defined(), kOp, ": weight is missing, expected it (dx is wanted)");
    p.dx.b = operands.weight("weight", a.weight, cols, p.dx.cols);
    p.dx.out = operands.output("dx", a.dx, p.dx.cols);
    p.dx.accumulates = a.accumulate_dx;
  }
  if (a.dweight.defined()) {
    p.dweight.cols = cols_of(kOp, "x", a.x);
    check_value(!a.dx.defined() || p.dweight.cols == p.dx.cols, kOp, ": x has ", p.dweight.cols,
                " columns, expected ", p.dx.cols, " (the columns of weight)");
    p.dweight.b = operands.input("x", a.x, p.dweight.cols, "x_rows", a.x_rows);
    p.dweight.out_dtype = a.dweight.dtype;
    p.dweight.out = operands.dweight_if_present("dweight", a.dweight, cols, p.dweight.cols);
    p.dweight.accumulates = a.accumulate_dweight;
  }
  operands.check_overlaps();
  return p;
}

void check_gate(const char* op, Pointwise activation) {
  check_value(is_gated(activation), op, ": activation is ", name_of(activation),
              ", expected a gated one");
}

GroupedGatedProblem check(const Context& context, const GroupedGatedLinearForward& a) {
  check_gate(kGated, a.activation);
  GroupedOperands operands(kGated, context, kX, a.x, a.offsets, rows_of(kGated, "y", a.y), "y");
  check_value(a.gate.defined() == a.up.defined(), kGated, ": up is ",
              a.up.defined() ? "present, expected none" : "missing, expected it",
              " (gate and up are kept together)");
  check_type(!a.bias.defined() || !a.up_bias.defined() || a.bias.dtype == a.up_bias.dtype, kGated,
             ": up_bias is ", name_of(a.up_bias.dtype), ", expected ", name_of(a.bias.dtype),
             " (the dtype of bias)");
  GroupedProduct gate{.op = kGated, .dtype = a.x.dtype, .groups = operands.groups()};
  gate.bias_dtype = dtype_or(a.bias, dtype_or(a.up_bias, gate.dtype));
  gate.terms = cols_of(kGated, "x", a.x);
  gate.a = operands.input("x", a.x, gate.terms, "x_rows", a.x_rows);
  gate.b = operands.weight("weight", a.weight, -1, gate.terms).transposed();
  gate.cols = rows_of_weight(a.weight);
  GroupedProduct up = gate;
  up.b = operands.weight("up_weight", a.up_weight, gate.cols, gate.terms).transposed();
  gate.bias = operands.bias_if_present("bias", a.bias, gate.cols);
  up.bias = operands.bias_if_present("up_bias", a.up_bias, gate.cols);
  gate.out = operands.output_if_present("gate", a.gate, gate.cols);
  up.out = operands.output_if_present("up", a.up, gate.cols);
  const Rows y = operands.output("y", a.y, gate.cols);
  operands.check_overlaps();
  return {a.activation, gate, up, y};
}

GroupedDgatedProblem check(const Context& context, const GroupedLinearDgated& a) {
  check_gate(kDgated, a.activation);
  GroupedOperands operands(kDgated, context, kGate, a.gate, a.offsets,
                           rows_of(kDgated, "gate", a.gate), "gate");
  GroupedDgatedProblem p{.activation = a.activation, .product = {}};
  p.product = {.op = kDgated, .dtype = a.gate.dtype, .groups = operands.groups()};
  const std::int64_t cols = p.product.cols = cols_of(kDgated, "gate", a.gate);
  p.product.terms = cols_of(kDgated, "dy", a.dy);
  p.product.a = operands.input("dy", a.dy, p.product.terms, "dy_rows", a.dy_rows);
  p.product.b = operands.weight("weight", a.weight, p.product.terms, cols);
  p.gate = operands.input("gate", a.gate, cols).rows;
  p.up = operands.input("up", a.up, cols).rows;
  p.factors = operands.factors_if_present(a.factors);
  p.dgate = operands.output("dgate", a.dgate, cols);
  p.dup = operands.output("dup", a.dup, cols);
  p.h = operands.output_if_present("h", a.h, cols);
  p.dfactors = operands.dfactors_if_present(a.dfactors);
  operands.check_overlaps();
  return p;
}

std::string described(const char* pass, DType dtype, const RowGroups& groups, std::int64_t terms,
                      std::int64_t cols) {
  return concat(pass, " ", name_of(dtype), " ", groups.count, " groups of ", groups.rows, "x",
                terms, "x", cols);
}

}  // namespace

std::string describe(const GroupedProduct& p) {
  return concat(described("product", p.dtype, p.groups, p.terms, p.cols),
                p.a.index != nullptr ? ", gathered" : "", p.bias != nullptr ? " + bias" : "",
                p.factors != nullptr ? ", factors" : "", p.accumulates ? ", accumulated" : "");
}

std::string describe(const GroupedGradient& p) {
  const bool gathers = p.a.index != nullptr || p.b.index != nullptr;
  return concat(described("gradient", p.dtype, p.groups, p.rows, p.cols),
                gathers ? ", gathered" : "",
                p.out_dtype != p.dtype ? concat(" to ", name_of(p.out_dtype)) : "",
                p.factors != nullptr ? ", factors" : "", p.accumulates ? ", accumulated" : "");
}

std::string describe(const GroupedBackwardProblem& p) {
  return concat(
      "backward", p.dx.out.data != nullptr ? concat(" dx: ", describe(p.dx)) : "",
      p.dweight.out.first.data != nullptr ? concat(" dweight: ", describe(p.dweight)) : "",
      p.dbias.dbias != nullptr ? " dbias" : "");
}

std::string describe(const GroupedGatedProblem& p) {
  return concat(describe(p.gate), " ", name_of(p.activation), p.keeps() ? ", kept" : "");
}

std::string describe(const GroupedDgatedProblem& p) {
  return concat(describe(p.product), " ", name_of(p.activation), p.h.data != nullptr ? " h" : "",
                p.dfactors != nullptr ? " dfactors" : "");
}

void grouped_linear_forward(const Context& context, const GroupedLinearForward& arguments) {
  const GroupedProduct product = check(context, arguments);
  if (product.groups.rows == 0 || product.cols == 0) return;
  run_on(kOp, kForward, context, product);
}

void grouped_linear_backward(const Context& context, const GroupedLinearBackward& arguments) {
  run_on(kOp, kBackward, context, check(context, arguments));
}

void grouped_gated_linear_forward(const Context& context,
                                  const GroupedGatedLinearForward& arguments) {
  const GroupedGatedProblem problem = check(context, arguments);
  if (problem.gate.groups.rows == 0 || problem.gate.cols == 0) return;
  run_on(kGated, kGatedForward, context, problem);
}

void grouped_linear_dgated(const Context& context, const GroupedLinearDgated& arguments) {
  const GroupedDgatedProblem problem = check(context, arguments);
  if (problem.product.groups.rows == 0) return;
  run_on(kDgated, kDgatedBackends, context, problem);
}

}  // namespace transformer_kernels
