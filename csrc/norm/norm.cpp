// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/norm.h"

#include "core/backends.h"
#include "core/dispatch.h"
#include "core/overlap.h"
#include "norm/dropout_problem.h"

namespace transformer_kernels {
namespace {

constexpr Backends<NormForwardProblem> kForward{.cpu = cpu::norm_forward,
                                                .cuda = kHasCuda ? cuda::norm_forward : nullptr};
constexpr Backends<NormBackwardProblem> kBackward{.cpu = cpu::norm_backward,
                                                  .cuda = kHasCuda ? cuda::norm_backward : nullptr};

constexpr Backends<DropoutNormForwardProblem> kDropoutForward{
    .cpu = cpu::dropout_norm_forward, .cuda = kHasCuda ? cuda::dropout_norm_forward : nullptr};
constexpr Backends<DropoutNormBackwardProblem> kDropoutBackward{
    .cpu = cpu::dropout_norm_backward, .cuda = kHasCuda ? cuda::dropout_norm_backward : nullptr};

// The properties in which members of the family differ.
struct Member {
  const char* op;
  bool center;
  double eps;
};
constexpr Member kLayerNorm{.op = "layer_norm", .center = true, .eps = 1e-5};
constexpr Member kRmsNorm{.op = "rms_norm", .center = false, .eps = 1e-6};

constexpr Member kDropoutLayerNorm{
    .op = "bias_dropout_add_layer_norm", .center = true, .eps = kLayerNorm.eps};
constexpr Member kDropoutRmsNorm{
    .op = "bias_dropout_add_rms_norm", .center = false, .eps = kRmsNorm.eps};

DType first_dtype(DType otherwise, std::initializer_list<const TensorView*> views) {
  for (const TensorView* view : views) {
    if (view->defined()) return view->dtype;
  }
  return otherwise;
}

// Whose dtype an operand has.
struct Typed {
  DType dtype;
  const char* name;
  const char* reason;
};
constexpr Typed like_x(DType dtype) { return {dtype, "x", "the dtype of x"}; }
constexpr Typed like_residual(DType dtype) { return {dtype, "residual", "the dtype of residual"}; }
constexpr Typed like_dy(DType dtype) { return {dtype, "dy", "the dtype of dy"}; }

// Checks the operands of one call against its x.
class Operands {
 public:
  // `sums`: the dtype that is normalised, by default x's.
  Operands(const Member& member, Device device, const TensorView& x,
           std::optional<Typed> sums = std::nullopt)
      : member_(member),
        check_(member.op, device),
        x_(x),
        sums_(sums.value_or(like_x(x.dtype))) {
    check_.floating("x", x);
  }

  // A matrix of the dtype that is normalised, or of `typed`.
  Rows input(const char* name, const TensorView& view) const { return input(name, view, sums_); }
  Rows input(const char* name, const TensorView& view, const Typed& typed) const {
    if (!view.defined()) return {};
    check(name, view, typed);
    return {view.data, checked_row_stride(member_.op, name, view)};
  }

  Rows output(const char* name, const TensorView& view) const { return output(name, view, sums_); }
  Rows output(const char* name, const TensorView& view, const Typed& typed) const {
    check(name, view, typed);
    return {view.data, checked_output_stride(member_.op, name, view)};
  }

  // Checks a residual or sum beside x: it has x's dtype, or float32 beside 16 bits.
  void sums(const char* name, const TensorView& view) const {
    check_.typed_or_float32(name, view, x_.dtype, "x");
  }

  // Checks x, or a gradient of its dtype, beside sums: it has their dtype, or 16 bits beside
  // float32.
  void branch(const char* name, const TensorView& view) const {
    check_.floating(name, view);
    const bool wide = sums_.dtype == DType::kFloat32;
    check_type(view.dtype == sums_.dtype || (wide && size_of(view.dtype) == 2), member_.op, ": ",
               name, " is ", name_of(view.dtype), ", expected ", name_of(sums_.dtype),
               wide ? ", float16 or bfloat16" : "", " (the dtype of ", sums_.name, ")");
  }

  // A parameter or its gradient: one value a column, of the dtype that is normalised or float32.
  // `dtype` is that of the others.
  void* parameter(const char* name, const TensorView& view, DType dtype) const {
    if (!view.defined()) return nullptr;
    const char* const op = member_.op;
    check_.floating(name, view);
    check_.typed_or_float32(name, view, sums_.dtype, sums_.name);
    check_type(view.dtype == dtype, op, ": ", name, " is ", name_of(view.dtype), ", expected ",
               name_of(dtype), " (all parameters and their gradients share one dtype)");
    check_.packed(name, view, rows_and_cols(x_).cols, "the last dimension of x");
    return view.data;
  }

  void* statistics(const char* name, const TensorView& view) const {
    if (!view.defined()) return nullptr;
    check_.typed(name, view, accumulate_dtype(sums_.dtype), "the dtype of statistics");
    check_.packed(name, view, rows_and_cols(x_).rows, "one for each row of x");
    return view.data;
  }

  void* mean(const TensorView& view) const {
    check_value(member_.center || !view.defined(), member_.op, ": mean is given, expected none");
    return statistics("mean", view);
  }

 private:
  void check(const char* name, const TensorView& view, const Typed& typed) const {
    check_.typed(name, view, typed.dtype, typed.reason);
    check_.same_shape(name, view, "x", x_);
  }

  const Member& member_;
  ArgumentChecker check_;
  const TensorView& x_;
  Typed sums_;
};

NormForwardProblem problem_of(const Member& member, const Operands& check, const NormForward& a,
                              const Typed& sums) {
  const char* const op = member.op;
  check_value(a.residual.defined() == a.sum.defined(), op, ": ",
              a.sum.defined() ? "residual" : "sum", " is missing, expected with ",
              a.sum.defined() ? "sum" : "residual");
  const auto [rows, cols] = rows_and_cols(a.x);
  const DType weight_dtype = first_dtype(sums.dtype, {&a.weight, &a.bias});
  return {.center = member.center,
          .dtype = sums.dtype,
          .weight_dtype = weight_dtype,
          .rows = rows,
          .cols = cols,
          .x = check.input("x", a.x, like_x(a.x.dtype)),
          .residual = check.input("residual", a.residual),
          .y = check.output("y", a.y, like_x(a.x.dtype)),
          .sum = a.sum.defined() ? check.output("sum", a.sum) : Rows{},
          .weight = check.parameter("weight", a.weight, weight_dtype),
          .bias = check.parameter("bias", a.bias, weight_dtype),
          .mean = check.mean(a.mean),
          .rstd = check.statistics("rstd", a.rstd),
          .eps = a.eps.value_or(member.eps),
          .zero_centered_weight = a.zero_centered_weight,
          .op = op};
}

// `branch`: of dy and dx.
NormBackwardProblem problem_of(const Member& member, const Operands& check, const NormBackward& a,
                               const Typed& branch) {
  const char* const op = member.op;
  check_value(a.dy.defined(), op, ": dy is missing");
  check_value(a.mean.defined() || !member.center, op, ": mean is missing");
  check_value(a.rstd.defined(), op, ": rstd is missing");
  const auto [rows, cols] = rows_and_cols(a.x);
  const DType weight_dtype = first_dtype(a.x.dtype, {&a.weight, &a.dweight, &a.dbias});
  return {.center = member.center,
          .dtype = a.x.dtype,
          .weight_dtype = weight_dtype,
          .rows = rows,
          .cols = cols,
          .dy = check.input("dy", a.dy, branch),
          .dsum = check.input("dsum", a.dsum),
          .x = check.input("x", a.x),
          .dx = check.output("dx", a.dx, branch),
          .mean = check.mean(a.mean),
          .rstd = check.statistics("rstd", a.rstd),
          .weight = check.parameter("weight", a.weight, weight_dtype),
          .dweight = check.parameter("dweight", a.dweight, weight_dtype),
          .dbias = check.parameter("dbias", a.dbias, weight_dtype),
          .zero_centered_weight = a.zero_centered_weight,
          .op = op};
}

DropoutNormForwardProblem problem_of(const Member& member, const Context& context,
                                     const BiasDropoutAddNormForward& a) {
  check_value(a.residual.defined(), member.op, ": residual is missing");
  const bool mixed = size_of(a.x.dtype) == 2 && a.residual.dtype == DType::kFloat32;
  const Typed sums = mixed ? like_residual(a.residual.dtype) : like_x(a.x.dtype);
  const Operands check(member, context.device, a.x, sums);
  check.sums("residual", a.residual);
  const NormForwardProblem norm = problem_of(member, check, a, sums);
  const DType bias_dtype = first_dtype(norm.dtype, {&a.x_bias});
  return {.norm = norm,
          .dropout = {.op = member.op,
                      .dtype = norm.dtype,
                      .bias_dtype = bias_dtype,
                      .rows = norm.rows,
                      .cols = norm.cols,
                      .x = norm.x,
                      .residual = norm.residual,
                      .y = norm.sum,
                      .bias = check.parameter("x_bias", a.x_bias, bias_dtype),
                      .draw = checked_draw(member.op, context, a.p, a.seed, "x")},
          .branch_dtype = a.x.dtype};
}

DropoutNormBackwardProblem problem_of(const Member& member, const Context& context,
                                      const BiasDropoutAddNormBackward& a) {
  const Operands check(member, context.device, a.x);
  check.branch("dy", a.dy);
  const bool mixed = a.dy.dtype != a.x.dtype;
  const Typed branch = mixed ? like_dy(a.dy.dtype) : like_x(a.x.dtype);
  NormBackwardProblem norm = problem_of(member, check, a, branch);
  const DType bias_dtype = first_dtype(norm.dtype, {&a.dx_bias});
  const Rows dx = norm.dx;
  norm.dx = check.output("dresidual", a.dresidual);
  return {.norm = norm,
          .dropout = {.op = member.op,
                      .dtype = norm.dtype,
                      .bias_dtype = bias_dtype,
                      .rows = norm.rows,
                      .cols = norm.cols,
                      .dy = norm.dx,
                      .dx = dx,
                      .dbias = check.parameter("dx_bias", a.dx_bias, bias_dtype),
                      .draw = checked_draw(member.op, context, a.p, a.seed, "dy")},
          .branch_dtype = branch.dtype};
}

// The results of `a` lie apart from its operands, but for the sum, and from `x_bias`.
void check_overlaps(const char* op, const NormForward& a, const TensorView& x_bias = {}) {
  check_over_or_apart(op, {"sum", a.sum}, {"residual", a.residual});
  check_apart(op, {{"y", a.y}}, {{"residual", a.residual}});
  check_apart(op, {{"y", a.y}, {"sum", a.sum}, {"mean", a.mean}, {"rstd", a.rstd}},
              {{"x", a.x}, {"weight", a.weight}, {"bias", a.bias}, {"x_bias", x_bias}});
}

// Likewise of the gradients, but for dx.
void check_overlaps(const char* op, const NormBackward& a, const TensorView& dresidual = {},
                    const TensorView& dx_bias = {}) {
  check_over_or_apart(op, {"dx", a.dx}, {"dy", a.dy});
  check_apart(
      op,
      {{"dresidual", dresidual}, {"dweight", a.dweight}, {"dbias", a.dbias}, {"dx_bias", dx_bias}},
      {{"dy", a.dy}});
  check_apart(
      op,
      {{"dx", a.dx},
       {"dresidual", dresidual},
       {"dweight", a.dweight},
       {"dbias", a.dbias},
       {"dx_bias", dx_bias}},
      {{"dsum", a.dsum}, {"x", a.x}, {"mean", a.mean}, {"rstd", a.rstd}, {"weight", a.weight}});
}

void forward(const Member& member, const Context& context, const NormForward& arguments) {
  const Operands check(member, context.device, arguments.x);
  const NormForwardProblem problem =
      problem_of(member, check, arguments, like_x(arguments.x.dtype));
  check_overlaps(member.op, arguments);
  if (problem.rows > 0) run_on(member.op, kForward, context, problem);
}

void backward(const Member& member, const Context& context, const NormBackward& arguments) {
  const Operands check(member, context.device, arguments.x);
  const NormBackwardProblem problem =
      problem_of(member, check, arguments, like_x(arguments.x.dtype));
  check_overlaps(member.op, arguments);
  run_on(member.op, kBackward, context, problem);
}

void forward(const Member& member, const Context& context, const BiasDropoutAddNormForward& a) {
  const DropoutNormForwardProblem problem = problem_of(member, context, a);
  check_overlaps(member.op, a, a.x_bias);
  if (problem.norm.rows > 0) run_on(member.op, kDropoutForward, context, problem);
}

void backward(const Member& member, const Context& context, const BiasDropoutAddNormBackward& a) {
  const DropoutNormBackwardProblem problem = problem_of(member, context, a);
  check_overlaps(member.op, a, a.dresidual, a.dx_bias);
  run_on(member.op, kDropoutBackward, context, problem);
}

}  // namespace

void layer_norm_forward(const Context& context, const NormForward& arguments) {
  forward(kLayerNorm, context, arguments);
}

void layer_norm_backward(const Context& context, const NormBackward& arguments) {
  backward(kLayerNorm, context, arguments);
}

void rms_norm_forward(const Context& context, const NormForward& arguments) {
  forward(kRmsNorm, context, arguments);
}

void rms_norm_backward(const Context& context, const NormBackward& arguments) {
  backward(kRmsNorm, context, arguments);
}

void bias_dropout_add_layer_norm_forward(const Context& context,
                                         const BiasDropoutAddNormForward& arguments) {
  forward(kDropoutLayerNorm, context, arguments);
}

void bias_dropout_add_layer_norm_backward(const Context& context,
                                          const BiasDropoutAddNormBackward& arguments) {
  backward(kDropoutLayerNorm, context, arguments);
}

void bias_dropout_add_rms_norm_forward(const Context& context,
                                       const BiasDropoutAddNormForward& arguments) {
  forward(kDropoutRmsNorm, context, arguments);
}

void bias_dropout_add_rms_norm_backward(const Context& context,
                                        const BiasDropoutAddNormBackward& arguments) {
  backward(kDropoutRmsNorm, context, arguments);
}

std::string describe(const NormForwardProblem& p) {
  return concat("forward ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.residual.data ? " + residual" : "");
}

std::string describe(const NormBackwardProblem& p) {
  return concat("backward ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.dsum.data ? " + dsum" : "");
}

}  // namespace transformer_kernels
