// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/norm.h"

#include "core/backends.h"
#include "core/dispatch.h"
#include "core/overlap.h"
#include "norm/dropout_norm.h"

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

// What tells the members of the family apart.
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

// Checks the operands of one call against its x.
class Operands {
 public:
  Operands(const Member& member, Device device, const TensorView& x)
      : member_(member),
        check_(member.op, device),
        x_(x) {
    check_.floating("x", x);
  }

  Rows input(const char* name, const TensorView& view) const {
    if (!view.defined()) return {};
    like_x(name, view);
    return {view.data, checked_row_stride(member_.op, name, view)};
  }

  Rows output(const char* name, const TensorView& view) const {
    like_x(name, view);
    return {view.data, checked_output_stride(member_.op, name, view)};
  }

  // A parameter or its gradient: one value a column, of x's dtype or float32. `dtype` is that of
  // the others.
  void* parameter(const char* name, const TensorView& view, DType dtype) const {
    if (!view.defined()) return nullptr;
    const char* const op = member_.op;
    check_.floating(name, view);
    check_.typed_or_float32(name, view, x_.dtype, "x");
    check_type(view.dtype == dtype, op, ": ", name, " is ", name_of(view.dtype), ", expected ",
               name_of(dtype), " (all parameters and their gradients share one dtype)");
    check_.packed(name, view, rows_and_cols(x_).cols, "the last dimension of x");
    return view.data;
  }

  void* statistics(const char* name, const TensorView& view) const {
    if (!view.defined()) return nullptr;
    check_.typed(name, view, accumulate_dtype(x_.dtype), "the dtype of statistics");
    check_.packed(name, view, rows_and_cols(x_).rows, "one for each row of x");
    return view.data;
  }

  void* mean(const TensorView& view) const {
    check_value(member_.center || !view.defined(), member_.op, ": mean is given, expected none");
    return statistics("mean", view);
  }

 private:
  void like_x(const char* name, const TensorView& view) const {
    check_.typed(name, view, x_.dtype, "the dtype of x");
    check_.same_shape(name, view, "x", x_);
  }

  const Member& member_;
  ArgumentChecker check_;
  const TensorView& x_;
};

NormForwardProblem problem_of(const Member& member, Device device, const NormForward& a) {
  const char* const op = member.op;
  const Operands check(member, device, a.x);
  check_value(a.residual.defined() == a.sum.defined(), op, ": ",
              a.sum.defined() ? "residual" : "sum", " is missing, expected with ",
              a.sum.defined() ? "sum" : "residual");
  const auto [rows, cols] = rows_and_cols(a.x);
  const DType weight_dtype = first_dtype(a.x.dtype, {&a.weight, &a.bias});
  return {.center = member.center,
          .dtype = a.x.dtype,
          .weight_dtype = weight_dtype,
          .rows = rows,
          .cols = cols,
          .x = check.input("x", a.x),
          .residual = check.input("residual", a.residual),
          .y = check.output("y", a.y),
          .sum = a.sum.defined() ? check.output("sum", a.sum) : Rows{},
          .weight = check.parameter("weight", a.weight, weight_dtype),
          .bias = check.parameter("bias", a.bias, weight_dtype),
          .mean = check.mean(a.mean),
          .rstd = check.statistics("rstd", a.rstd),
          .eps = a.eps.value_or(member.eps),
          .zero_centered_weight = a.zero_centered_weight,
          .op = op};
}

NormBackwardProblem problem_of(const Member& member, Device device, const NormBackward& a) {
  const char* const op = member.op;
  const Operands check(member, device, a.x);
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
          .dy = check.input("dy", a.dy),
          .dsum = check.input("dsum", a.dsum),
          .x = check.input("x", a.x),
          .dx = check.output("dx", a.dx),
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
  const NormForwardProblem norm = problem_of(member, context.device, a);
  const Operands check(member, context.device, a.x);
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
                      .draw = checked_draw(member.op, context, a.p, a.seed, "x")}};
}

DropoutNormBackwardProblem problem_of(const Member& member, const Context& context,
                                      const BiasDropoutAddNormBackward& a) {
  NormBackwardProblem norm = problem_of(member, context.device, a);
  const Operands check(member, context.device, a.x);
  const DType bias_dtype = first_dtype(norm.dtype, {&a.dx_bias});
  const Rows dx = norm.dx;
  norm.dx = check.output("dresidual", a.dresidual);
  const std::int64_t bytes = size_of(norm.dtype);
  const auto extent = [&](const char* name, const Rows& matrix) {
    return Extent{name, matrix, norm.rows, norm.cols * bytes, bytes};
  };
  check_outputs_apart(member.op, extent("dx", dx), extent("dresidual", norm.dx));
  return {.norm = norm,
          .dropout = {.op = member.op,
                      .dtype = norm.dtype,
                      .bias_dtype = bias_dtype,
                      .rows = norm.rows,
                      .cols = norm.cols,
                      .dy = norm.dx,
                      .dx = dx,
                      .dbias = check.parameter("dx_bias", a.dx_bias, bias_dtype),
                      .draw = checked_draw(member.op, context, a.p, a.seed, "dy")}};
}

void forward(const Member& member, const Context& context, const NormForward& arguments) {
  const NormForwardProblem problem = problem_of(member, context.device, arguments);
  if (problem.rows > 0) run_on(member.op, kForward, context, problem);
}

void backward(const Member& member, const Context& context, const NormBackward& arguments) {
  const NormBackwardProblem problem = problem_of(member, context.device, arguments);
  run_on(member.op, kBackward, context, problem);
}

void forward(const Member& member, const Context& context, const BiasDropoutAddNormForward& a) {
  const DropoutNormForwardProblem problem = problem_of(member, context, a);
  if (problem.norm.rows > 0) run_on(member.op, kDropoutForward, context, problem);
}

void backward(const Member& member, const Context& context, const BiasDropoutAddNormBackward& a) {
  const DropoutNormBackwardProblem problem = problem_of(member, context, a);
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
