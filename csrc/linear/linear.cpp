// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/linear.h"

#include <vector>

#include "core/backends.h"
#include "core/overlap.h"
#include "core/strides.h"
#include "linear/linear_problem.h"
#include "pointwise/pointwise_problem.h"

namespace transformer_kernels {
namespace {

constexpr Backends<LinearForwardProblem> kForward{
    .cpu = cpu::linear_forward, .cuda = kHasCuda ? cuda::linear_forward : nullptr};
constexpr Backends<LinearBackwardProblem> kBackward{
    .cpu = cpu::linear_backward, .cuda = kHasCuda ? cuda::linear_backward : nullptr};
constexpr Backends<LinearDactProblem> kDact{.cpu = cpu::linear_dact,
                                            .cuda = kHasCuda ? cuda::linear_dact : nullptr};

// The tensor whose columns weight has, and what its dtype is called.
struct Leading {
  const char* name;
  const char* dtype;
};
constexpr Leading kX{"x", "the dtype of x"};
constexpr Leading kZ{"z", "the dtype of z"};

// Checks the operands of one call one by one, and notes where they lie.
class Operands {
 public:
  Operands(const char* op, const Context& context, const TensorView& x, const TensorView& weight,
           Leading leading = kX)
      : op_(op),
        check_(op, context.device),
        x_(x),
        leading_(leading) {
    check_.floating(leading.name, x);
    shape_ = rows_and_cols(x);
    check_.floating("weight", weight);
    check_value(weight.rank == 2, op_, ": weight has ", weight.rank, " dimensions, expected 2");
    check_.typed("weight", weight, x.dtype, leading.dtype);
    check_value(weight.sizes[1] == shape_.cols, op_, ": weight has ", weight.sizes[1],
                " columns, expected ", shape_.cols, " (the last dimension of ", leading.name, ")");
    cols_ = weight.sizes[0];
  }

  std::int64_t rows() const { return shape_.rows; }
  std::int64_t terms() const { return shape_.cols; }
  std::int64_t cols() const { return cols_; }

  Rows input(const char* name, const TensorView& view, std::int64_t cols) {
    inputs_.push_back({name, view});
    check_rows(name, view, cols);
    return {view.data, checked_row_stride(op_, name, view)};
  }
  Rows output_if_present(const char* name, const TensorView& view, std::int64_t cols) {
    if (!view.defined()) return {};
    outputs_.push_back({name, view});
    check_rows(name, view, cols);
    return {view.data, checked_output_stride(op_, name, view)};
  }

  Matrix weight(const TensorView& view) {
    inputs_.push_back({"weight", view});
    return {view.data, view.strides[0], view.strides[1]};
  }
  Matrix dweight_if_present(const TensorView& view, const TensorView& weight) {
    if (!view.defined()) return {};
    outputs_.push_back({"dweight", view});
    check_.typed("dweight", view, x_.dtype, leading_.dtype);
    check_.same_shape("dweight", view, "weight", weight);
    const bool has_lines = view.numel() == 0 || view.sizes[0] == 1 || view.sizes[1] == 1 ||
                           view.strides[0] == 1 || view.strides[1] == 1;
    check_value(has_lines && !overlaps_itself(view), op_, ": dweight has strides (",
                view.strides[0], ", ", view.strides[1],
                "), expected one of 1 and no element over another");
    return {view.data, view.strides[0], view.strides[1]};
  }

  // One value a column of y, of x's dtype or float32.
  const void* bias_if_present(const TensorView& view) {
    if (!view.defined()) return nullptr;
    inputs_.push_back({"bias", view});
    return vector("bias", view);
  }
  void* dbias_if_present(const TensorView& view) {
    if (!view.defined()) return nullptr;
    outputs_.push_back({"dbias", view});
    return vector("dbias", view);
  }

  void check_overlaps() const {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      for (const Named& input : inputs_) check_apart(outputs_[i], input);
      for (std::size_t j = 0; j < i; ++j) check_apart(outputs_[i], outputs_[j]);
    }
  }

 private:
  struct Named {
    const char* name;
    TensorView view;
  };

  void check_apart(const Named& output, const Named& other) const {
    check_value(!share_memory(output.view, other.view), op_, ": ", output.name, " overlaps ",
                other.name, ", expected memory of its own");
  }

  // The leading dimensions of x, then `cols`.
  void check_rows(const char* name, const TensorView& view, std::int64_t cols) const {
    check_.typed(name, view, x_.dtype, leading_.dtype);
    TensorView like = x_;
    like.sizes[like.rank - 1] = cols;
    check_.same_shape(name, view, concat("the rows of ", leading_.name).c_str(), like);
  }

  void* vector(const char* name, const TensorView& view) const {
    check_.floating(name, view);
    check_.typed_or_float32(name, view, x_.dtype, "x");
    check_.packed(name, view, cols_, "the rows of weight");
    check_value(view.rank == 1, op_, ": ", name, " has ", view.rank, " dimensions, expected 1");
    return view.data;
  }

  const char* op_;
  ArgumentChecker check_;
  const TensorView& x_;
  Leading leading_;
  Shape2d shape_{};
  std::int64_t cols_ = 0;
  std::vector<Named> inputs_;
  std::vector<Named> outputs_;
};

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
  LinearForwardProblem p{};
  p.dtype = a.x.dtype;
  p.bias_dtype = a.bias.defined() ? a.bias.dtype : a.x.dtype;
  p.rows = operands.rows();
  p.terms = operands.terms();
  p.cols = operands.cols();
  p.activation = a.activation;
  p.x = operands.input("x", a.x, p.terms);
  p.weight = operands.weight(a.weight);
  p.bias = operands.bias_if_present(a.bias);
  p.z = operands.output_if_present("z", a.z, p.cols);
  check_value(a.y.defined(), name_of_op(a), ": y is missing");
  p.y = operands.output_if_present("y", a.y, p.cols);
  operands.check_overlaps();
  return p;
}

LinearBackwardProblem check(const Context& context, const LinearBackward& a) {
  Operands operands(name_of_op(a), context, a.x, a.weight);
  check_activation(name_of_op(a), a.activation);
  check_value(a.activation.has_value() == a.z.defined(), name_of_op(a), ": z is ",
              a.z.defined() ? "present, expected none" : "missing, expected it",
              a.activation ? " (with an activation)" : " (without an activation)");
  LinearBackwardProblem p{};
  p.dtype = a.x.dtype;
  p.bias_dtype = a.dbias.defined() ? a.dbias.dtype : a.x.dtype;
  p.rows = operands.rows();
  p.terms = operands.terms();
  p.cols = operands.cols();
  p.activation = a.activation;
  p.dy = operands.input("dy", a.dy, p.cols);
  p.x = operands.input("x", a.x, p.terms);
  p.weight = operands.weight(a.weight);
  if (a.z.defined()) p.z = operands.input("z", a.z, p.cols);
  p.dx = operands.output_if_present("dx", a.dx, p.terms);
  p.dweight = operands.dweight_if_present(a.dweight, a.weight);
  p.dbias = operands.dbias_if_present(a.dbias);
  operands.check_overlaps();
  return p;
}

LinearDactProblem check(const Context& context, const LinearDact& a) {
  constexpr const char* kOp = "linear_dact";
  Operands operands(kOp, context, a.z, a.weight, kZ);
  check_activation(kOp, a.activation);
  LinearDactProblem p{};
  p.dtype = a.z.dtype;
  p.rows = operands.rows();
  p.terms = operands.cols();
  p.cols = operands.terms();
  p.activation = a.activation;
  p.dy = operands.input("dy", a.dy, p.terms);
  p.weight = operands.weight(a.weight);
  p.z = operands.input("z", a.z, p.cols);
  check_value(a.dz.defined(), kOp, ": dz is missing");
  p.dz = operands.output_if_present("dz", a.dz, p.cols);
  p.h = operands.output_if_present("h", a.h, p.cols);
  operands.check_overlaps();
  return p;
}

template <class Problem>
std::string described(const char* pass, const Problem& p) {
  return concat(pass, " ", name_of(p.dtype), " ", p.rows, "x", p.terms, "x", p.cols,
                p.activation ? concat(" + ", name_of(*p.activation)) : "");
}

}  // namespace

std::string describe(const LinearForwardProblem& p) {
  return concat(described("forward", p), p.bias != nullptr ? " + bias" : "");
}

std::string describe(const LinearBackwardProblem& p) {
  return concat(described("backward", p), p.dx.data != nullptr ? " dx" : "",
                p.dweight.data != nullptr ? " dweight" : "", p.dbias != nullptr ? " dbias" : "");
}

std::string describe(const LinearDactProblem& p) {
  return concat("backward ", name_of(p.dtype), " ", p.rows, "x", p.terms, "x", p.cols, " + ",
                name_of(p.activation), p.h.data != nullptr ? " h" : "");
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
  if (problem.rows == 0 || problem.cols == 0) return;
  run_on("linear_dact", kDact, context, problem);
}

}  // namespace transformer_kernels
