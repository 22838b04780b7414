// SPDX-License-Identifier: MIT
#include "transformer_kernels/pointwise/dropout.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "core/backends.h"
#include "core/log.h"
#include "core/overlap.h"
#include "pointwise/dropout_problem.h"

namespace transformer_kernels {
namespace {

constexpr Backends<DropoutForwardProblem> kForward{
    .cpu = cpu::dropout_forward, .cuda = kHasCuda ? cuda::dropout_forward : nullptr};
constexpr Backends<DropoutBackwardProblem> kBackward{
    .cpu = cpu::dropout_backward, .cuda = kHasCuda ? cuda::dropout_backward : nullptr};

// Checks operands against the first matrix of a call, which it calls `like_name`.
class Operands {
 public:
  Operands(const char* op, const Context& context, const char* like_name, const TensorView& like)
      : op_(op),
        check_(op, context.device),
        like_name_(like_name),
        like_(like) {
    check_.floating(like_name, like);
    shape_ = rows_and_cols(like);
  }

  Shape2d shape() const { return shape_; }

  Rows input(const char* name, const TensorView& view) const {
    return {view.data, like(name, view, checked_row_stride)};
  }
  Rows output(const char* name, const TensorView& view) const {
    return {view.data, like(name, view, checked_output_stride)};
  }
  void* bias(const char* name, const TensorView& view) const {
    if (!view.defined()) return nullptr;
    check_.floating(name, view);
    check_.typed_or_float32(name, view, like_.dtype, like_name_);
    const std::string reason = concat("the last dimension of ", like_name_);
    check_.packed(name, view, shape_.cols, reason.c_str());
    check_value(view.rank == 1, op_, ": ", name, " has ", view.rank, " dimensions, expected 1");
    return view.data;
  }
  Extent extent(const char* name, const Rows& matrix) const {
    const std::int64_t bytes = size_of(like_.dtype);
    return {name, matrix, shape_.rows, shape_.cols * bytes, bytes};
  }
  Extent extent_of_bias(const char* name, const void* data, DType dtype) const {
    const std::int64_t bytes = size_of(dtype);
    return {name, {const_cast<void*>(data), 0}, 1, shape_.cols * bytes, bytes};
  }

 private:
  template <class Stride>
  std::int64_t like(const char* name, const TensorView& view, Stride&& stride) const {
    const std::string reason = concat("the dtype of ", like_name_);
    check_.typed(name, view, like_.dtype, reason.c_str());
    check_.same_shape(name, view, like_name_, like_);
    return stride(op_, name, view);
  }

  const char* op_;
  ArgumentChecker check_;
  const char* like_name_;
  const TensorView& like_;
  Shape2d shape_{};
};

// Without a bias nothing depends on the column: rows that follow each other without gaps are one.
template <class Problem>
void join_rows(Problem& p, const void* bias, std::initializer_list<Rows> matrices) {
  if (bias != nullptr) return;
  for (const Rows& matrix : matrices) {
    if (matrix.data != nullptr && p.rows > 1 && matrix.stride != p.cols) return;
  }
  p.cols *= p.rows;
  p.rows = p.cols == 0 ? 0 : 1;
}

DropoutForwardProblem check(const char* op, const Context& context,
                            const BiasDropoutAddForward& a) {
  const Operands check(op, context, "x", a.x);
  DropoutForwardProblem p{};
  p.op = op;
  p.dtype = a.x.dtype;
  p.bias_dtype = a.bias.defined() ? a.bias.dtype : a.x.dtype;
  p.rows = check.shape().rows;
  p.cols = check.shape().cols;
  p.x = check.input("x", a.x);
  p.bias = check.bias("bias", a.bias);
  if (a.residual.defined()) p.residual = check.input("residual", a.residual);
  p.draw = checked_draw(op, context, a.p, a.seed, "x");
  p.y = check.output("y", a.y);
  const Extent y = check.extent("y", p.y);
  check_output_over_input(op, y, check.extent("x", p.x));
  check_output_over_input(op, y, check.extent("residual", p.residual));
  check_output_over_input(op, y, check.extent_of_bias("bias", p.bias, p.bias_dtype));
  join_rows(p, p.bias, {p.x, p.residual, p.y});
  return p;
}

DropoutBackwardProblem check(const char* op, const Context& context,
                             const BiasDropoutAddBackward& a) {
  const Operands check(op, context, "dy", a.dy);
  DropoutBackwardProblem p{};
  p.op = op;
  p.dtype = a.dy.dtype;
  p.bias_dtype = a.dbias.defined() ? a.dbias.dtype : a.dy.dtype;
  p.rows = check.shape().rows;
  p.cols = check.shape().cols;
  p.dy = check.input("dy", a.dy);
  p.draw = checked_draw(op, context, a.p, a.seed, "dy");
  p.dx = check.output("dx", a.dx);
  p.dbias = check.bias("dbias", a.dbias);
  const Extent dbias = check.extent_of_bias("dbias", p.dbias, p.bias_dtype);
  check_output_over_input(op, check.extent("dx", p.dx), check.extent("dy", p.dy));
  check_output_over_input(op, dbias, check.extent("dy", p.dy));
  check_outputs_apart(op, check.extent("dx", p.dx), dbias);
  join_rows(p, p.dbias, {p.dy, p.dx});
  return p;
}

void forward(const char* op, const Context& context, const BiasDropoutAddForward& arguments) {
  const DropoutForwardProblem problem = check(op, context, arguments);
  if (is_empty(problem)) return;
  run_on(op, kForward, context, problem);
}

void backward(const char* op, const Context& context, const BiasDropoutAddBackward& arguments) {
  const DropoutBackwardProblem problem = check(op, context, arguments);
  if (is_empty(problem)) return;
  run_on(op, kBackward, context, problem);
}

}  // namespace

DropoutDraw checked_draw(const char* op, const Context& context, double p, const TensorView& seed,
                         const char* like_name) {
  check_value(p >= 0 && p <= 1, op, ": p is ", p, ", expected a number from 0 to 1");
  const auto below = static_cast<std::uint32_t>(std::lrint(p * DropoutDraw::kValues));
  const double kept = std::max(DropoutDraw::kValues - below, 1u);  // 1: where no factor is used
  DropoutDraw draw{.below = below,
                   .scale = DropoutDraw::kValues / kept,
                   .seed = 0,
                   .offset = 0,
                   .seed_data = nullptr};
  if (draw.keeps_all() && p > 0 && log_dispatch()) {
    log_line(concat(op, ": p is ", p, ", below 2^-17: nothing is dropped"));
  }
  if (draw.keeps_all() || draw.keeps_none()) return draw;
  check_value(seed.defined(), op, ": seed is missing, expected one for 0 < p < 1");
  const bool on_cpu = seed.device.type == DeviceType::kCpu;
  const bool fits = (on_cpu || seed.device == context.device) && seed.dtype == DType::kInt64 &&
                    seed.rank == 1 && seed.sizes[0] == 2 && seed.strides[0] == 1;
  check_value(fits, op,
              ": seed is not a seed and an offset, expected 2 int64 on the CPU or beside ",
              like_name);
  const auto* const numbers = static_cast<const std::uint64_t*>(seed.data);
  if (on_cpu) {
    draw.seed = numbers[0];
    draw.offset = numbers[1];
  } else {
    draw.seed_data = numbers;
  }
  return draw;
}

std::string describe(const DropoutForwardProblem& p) {
  return concat("forward ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.bias != nullptr ? " + bias" : "",
                p.residual.data != nullptr ? " + residual" : "");
}

std::string describe(const DropoutBackwardProblem& p) {
  return concat("backward ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.dbias != nullptr ? " + dbias" : "");
}

void dropout_forward(const Context& context, const DropoutForward& a) {
  forward("dropout", context, {a.x, {}, {}, a.seed, a.p, a.y});
}

void dropout_backward(const Context& context, const DropoutBackward& a) {
  backward("dropout", context, {a.dy, a.seed, a.p, a.dx, {}});
}

void bias_dropout_add_forward(const Context& context, const BiasDropoutAddForward& arguments) {
  constexpr const char* kOp = "bias_dropout_add";
  check_value(arguments.residual.defined(), kOp, ": residual is missing");
  forward(kOp, context, arguments);
}

void bias_dropout_add_backward(const Context& context, const BiasDropoutAddBackward& arguments) {
  backward("bias_dropout_add", context, arguments);
}

}  // namespace transformer_kernels
