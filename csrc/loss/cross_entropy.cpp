// SPDX-License-Identifier: MIT
#include "transformer_kernels/loss/cross_entropy.h"

#include <cmath>

#include "core/backends.h"
#include "core/dispatch.h"
#include "core/overlap.h"
#include "loss/cross_entropy_problem.h"
#include "loss/labels.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "cross_entropy";
constexpr const char* kReduce = "reduce_losses";
constexpr const char* kScale = "scale_gradient";

template <class Problem>
void check_labels(const Context&, const Problem& p) {
  if (!p.has_labels()) return;
  check_labels(kOp, p, [&](std::int64_t row) { return p.label(row); });
}

constexpr Backends<CrossEntropyForwardProblem> kForward{
    .cpu = cpu::cross_entropy_forward,
    .cuda = kHasCuda ? cuda::cross_entropy_forward : nullptr,
    .numbers = check_labels};
constexpr Backends<CrossEntropyBackwardProblem> kBackward{
    .cpu = cpu::cross_entropy_backward,
    .cuda = kHasCuda ? cuda::cross_entropy_backward : nullptr,
    .numbers = check_labels};
constexpr Backends<ReduceLossesProblem> kReduceLosses{
    .cpu = cpu::reduce_losses,
    .cuda = kHasCuda ? cuda::reduce_losses : nullptr,
    .numbers = check_labels};
constexpr Backends<ScaleGradientProblem> kScaleGradient{
    .cpu = cpu::scale_gradient, .cuda = kHasCuda ? cuda::scale_gradient : nullptr};

// Checks one call's operands one after the other, and that outputs lie apart.
class Operands {
 public:
  Operands(const Context& context, const TensorView& x) : check_(kOp, context.device), x_(x) {
    check_.floating("x", x);
    shape_ = rows_and_cols(x);
    check_value(shape_.cols > 0, kOp, ": x has shape ", shape_of(x), ", expected a class or more");
  }

  // Fills in what both passes know.
  template <class Arguments>
  void common(CrossEntropyProblem& p, const Arguments& a) {
    p.dtype = x_.dtype;
    p.rows = shape_.rows;
    p.cols = shape_.cols;
    p.x = x_.data;
    p.x_stride = checked_row_stride(kOp, "x", x_);
    target(p, a.target, a.probabilities);
    weight(p, a.weight);
    check_value(a.label_smoothing >= 0 && a.label_smoothing <= 1, kOp, ": label_smoothing is ",
                a.label_smoothing, ", expected a number from 0 to 1");
    check_value(std::isfinite(a.z_loss), kOp, ": z_loss is ", a.z_loss,
                ", expected a finite number");
    check_value(a.softcap >= 0, kOp, ": softcap is ", a.softcap,
                ", expected a number of 0 or more");
    check_value(std::isfinite(a.softcap), kOp, ": softcap is ", a.softcap,
                ", expected a finite number");
    const int reduction = static_cast<int>(a.reduction);
    check_value(reduction >= 0 && reduction <= 2, kOp, ": reduction is ", reduction,
                ", expected 0 (none), 1 (mean) or 2 (sum)");
    p.ignore_index = a.ignore_index;
    p.label_smoothing = a.label_smoothing;
    p.z_loss = a.z_loss;
    p.softcap = a.softcap;
    p.reduction = a.reduction;
  }

  // A loss or its gradient: one number a row, or one.
  void loss(const char* name, const TensorView& view, Reduction reduction) const {
    check_.typed_or_float32(name, view, x_.dtype, "x");
    if (reduction == Reduction::kNone) {
      check_.packed(name, view, shape_.rows, "the rows of x");
    } else {
      check_.packed(name, view, 1, "of a reduction");
    }
  }

  void* statistic(const char* name, const TensorView& view, std::int64_t count,
                  const char* reason) const {
    check_.typed(name, view, accumulate_dtype(x_.dtype), "the dtype of the arithmetic");
    check_.packed(name, view, count, reason);
    return view.data;
  }

  void dx(CrossEntropyProblem& p, const TensorView& view) const {
    check_.typed("dx", view, x_.dtype, "the dtype of x");
    check_.same_shape("dx", view, "x", x_);
    p.dx = view.data;
    p.dx_stride = checked_output_stride(kOp, "dx", view);
    const std::int64_t bytes = size_of(x_.dtype);
    const auto extent = [&](const char* name, const void* data, std::int64_t stride) {
      return Extent{name, {const_cast<void*>(data), stride}, p.rows, p.cols * bytes, bytes};
    };
    const Extent out = extent("dx", p.dx, p.dx_stride);
    check_output_over_input(kOp, out, extent("x", p.x, p.x_stride));
    if (p.probabilities == nullptr) return;
    check_outputs_apart(kOp, extent("probabilities", p.probabilities, p.probabilities_stride), out);
  }

  std::int64_t rows() const { return shape_.rows; }

 private:
  void target(CrossEntropyProblem& p, const TensorView& labels, const TensorView& q) const {
    check_value(labels.defined() != q.defined(), kOp, ": target is ",
                labels.defined() ? "present beside probabilities, expected one of the two"
                                 : "missing, expected it or probabilities");
    if (labels.defined()) {
      check_.indices("target", labels);
      bool fits = labels.rank == x_.rank - 1;
      for (int i = 0; fits && i < labels.rank; ++i) fits = labels.sizes[i] == x_.sizes[i];
      TensorView rows = x_;
      rows.rank -= 1;
      check_value(fits, kOp, ": target has shape ", shape_of(labels), ", expected ", shape_of(rows),
                  " (one for each row of x)");
      check_.packed("target", labels, shape_.rows, "the rows of x");
      p.target = labels.data;
      p.target_dtype = labels.dtype;
      return;
    }
    check_.typed("probabilities", q, x_.dtype, "the dtype of x");
    check_.same_shape("probabilities", q, "x", x_);
    p.probabilities = q.data;
    p.probabilities_stride = checked_row_stride(kOp, "probabilities", q);
  }

  void weight(CrossEntropyProblem& p, const TensorView& view) const {
    if (!view.defined()) return;
    check_.floating("weight", view);
    check_.typed_or_float32("weight", view, x_.dtype, "x");
    check_.packed("weight", view, shape_.cols, "the last dimension of x");
    check_value(view.rank == 1, kOp, ": weight has ", view.rank, " dimensions, expected 1");
    p.weight = view.data;
    p.weight_dtype = view.dtype;
  }

  ArgumentChecker check_;
  const TensorView& x_;
  Shape2d shape_{};
};

CrossEntropyForwardProblem check(const Context& context, const CrossEntropyForward& a) {
  Operands operands(context, a.x);
  CrossEntropyForwardProblem p{};
  operands.common(p, a);
  operands.loss("loss", a.loss, p.reduction);
  p.loss = a.loss.data;
  p.loss_dtype = a.loss.dtype;
  if (a.top.defined()) {
    p.top = operands.statistic("top", a.top, operands.rows(), "the rows of x");
    p.spread = operands.statistic("spread", a.spread, operands.rows(), "the rows of x");
    p.share = operands.statistic("share", a.share, operands.rows(), "the rows of x");
  }
  if (a.total.defined()) p.total = operands.statistic("total", a.total, 1, "of a mean");
  if (a.dx.defined()) operands.dx(p, a.dx);
  if (a.divisor.defined()) {
    check_value(a.dx.defined() && p.reduction == Reduction::kNone, kOp,
                ": divisor is present, expected none without dx or with a reduction");
    p.divisor = operands.statistic("divisor", a.divisor, 1, "one number");
  }
  check_apart(kOp,
              {{"loss", a.loss},
               {"top", a.top},
               {"spread", a.spread},
               {"share", a.share},
               {"total", a.total}},
              {{"x", a.x},
               {"target", a.target},
               {"probabilities", a.probabilities},
               {"weight", a.weight},
               {"divisor", a.divisor},
               {"dx", a.dx}});
  return p;
}

CrossEntropyBackwardProblem check(const Context& context, const CrossEntropyBackward& a) {
  Operands operands(context, a.x);
  CrossEntropyBackwardProblem p{};
  operands.common(p, a);
  operands.loss("dloss", a.dloss, p.reduction);
  p.dloss = a.dloss.data;
  p.dloss_dtype = a.dloss.dtype;
  p.top = operands.statistic("top", a.top, operands.rows(), "the rows of x");
  p.spread = operands.statistic("spread", a.spread, operands.rows(), "the rows of x");
  p.share = operands.statistic("share", a.share, operands.rows(), "the rows of x");
  if (p.reduction == Reduction::kMean) {
    p.total = operands.statistic("total", a.total, 1, "of a mean");
  }
  operands.dx(p, a.dx);
  check_apart(kOp, {{"dx", a.dx}},
              {{"dloss", a.dloss},
               {"target", a.target},
               {"weight", a.weight},
               {"top", a.top},
               {"spread", a.spread},
               {"share", a.share},
               {"total", a.total}});
  return p;
}

ReduceLossesProblem check(const Context& context, const ReduceLosses& a) {
  const ArgumentChecker check(kReduce, context.device);
  const bool mean = a.reduction == Reduction::kMean;
  check_value(mean || a.reduction == Reduction::kSum, kReduce, ": reduction is ",
              static_cast<int>(a.reduction), ", expected 1 (mean) or 2 (sum)");
  check.indices("target", a.target);
  ReduceLossesProblem p{};
  p.rows = a.target.numel();
  p.cols = a.classes;
  p.reduction = a.reduction;
  p.ignore_index = a.ignore_index;
  check.packed("target", a.target, p.rows, "its elements");
  p.target = a.target.data;
  p.target_dtype = a.target.dtype;
  const TensorView& wide = a.losses.defined() ? a.losses : a.total;
  p.dtype = wide.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const auto statistic = [&, arithmetic = p.dtype](const char* name, const TensorView& view,
                                                   std::int64_t count, const char* reason) {
    check.typed(name, view, arithmetic, "the dtype of the arithmetic");
    check.packed(name, view, count, reason);
    return view.data;
  };
  // These may be of any dtype whose arithmetic this is.
  const auto narrow = [&, arithmetic = p.dtype](const char* name, const TensorView& view,
                                                std::int64_t count, const char* reason) {
    check.typed(name, view, view.dtype, "");
    check_type(is_floating(view.dtype) && accumulate_dtype(view.dtype) == arithmetic, kReduce, ": ",
               name, " is ", name_of(view.dtype), ", expected one that is computed in ",
               name_of(arithmetic));
    check.packed(name, view, count, reason);
    return view.data;
  };
  if (a.total.defined()) p.total = statistic("total", a.total, 1, "of a mean");
  if (a.loss.defined()) {
    p.losses = statistic("losses", a.losses, p.rows, "the rows of target");
    p.loss = narrow("loss", a.loss, 1, "of a reduction");
    p.loss_dtype = a.loss.dtype;
  }
  if (a.weight.defined()) {
    p.weight = narrow("weight", a.weight, a.classes, "the classes");
    p.dtype = p.weight_dtype = a.weight.dtype;
  }
  check_apart(kReduce, {{"loss", a.loss}, {"total", a.total}},
              {{"losses", a.losses}, {"target", a.target}, {"weight", a.weight}});
  return p;
}

ScaleGradientProblem check(const Context& context, const ScaleGradient& a) {
  const ArgumentChecker check(kScale, context.device);
  check.floating("x", a.x);
  check.typed_or_float32("by", a.by, a.x.dtype, "x");
  check.packed("by", a.by, 1, "one number");
  const auto [rows, cols] = rows_and_cols(a.x);
  return {.dtype = a.x.dtype,
          .rows = rows,
          .cols = cols,
          .x = a.x.data,
          .stride = checked_output_stride(kScale, "x", a.x),
          .by = a.by.data,
          .by_dtype = a.by.dtype};
}

std::string describe_common(const CrossEntropyProblem& p) {
  return concat(name_of(p.dtype), " ", p.rows, "x", p.cols, p.has_labels() ? "" : " probabilities",
                p.weight != nullptr ? " + weight" : "", p.softcap > 0 ? " capped" : "");
}

}  // namespace

std::string describe(const CrossEntropyForwardProblem& p) {
  return concat("forward ", describe_common(p), p.dx != nullptr ? " + dx" : "");
}

std::string describe(const CrossEntropyBackwardProblem& p) {
  return concat("backward ", describe_common(p));
}

std::string describe(const ReduceLossesProblem& p) {
  return concat(name_of(p.dtype), " ", p.rows, " rows", p.weight != nullptr ? " + weight" : "");
}

std::string describe(const ScaleGradientProblem& p) {
  return concat(name_of(p.dtype), " ", p.rows, "x", p.cols);
}

// No rows: a sum of nothing and, divided by nothing, a mean of NaN, both by the kernels.
void cross_entropy_forward(const Context& context, const CrossEntropyForward& arguments) {
  const CrossEntropyForwardProblem problem = check(context, arguments);
  if (problem.rows == 0 && problem.reduction == Reduction::kNone) return;
  run_on(kOp, kForward, context, problem);
}

void cross_entropy_backward(const Context& context, const CrossEntropyBackward& arguments) {
  const CrossEntropyBackwardProblem problem = check(context, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on(kOp, kBackward, context, problem);
}

void reduce_losses(const Context& context, const ReduceLosses& arguments) {
  run_on(kReduce, kReduceLosses, context, check(context, arguments));
}

void scale_gradient(const Context& context, const ScaleGradient& arguments) {
  const ScaleGradientProblem problem = check(context, arguments);
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on(kScale, kScaleGradient, context, problem);
}

}  // namespace transformer_kernels
