// SPDX-License-Identifier: MIT
#include "mlp/checks.h"

#include <vector>

#include "linear/operands.h"
#include "pointwise/problem.h"

namespace transformer_kernels {
namespace {

constexpr const char* kRows = "the rows of weight";
constexpr const char* kDownRows = "the rows of down_weight";

// Checks the operands of one call one by one, and notes where they lie. Those that are not defined
// are absent: `require` refuses these.
class MlpOperands {
 public:
  MlpOperands(const char* op, const Context& context, const TensorView& x)
      : op_(op),
        check_(op, context.device),
        x_(x) {
    check_.floating("x", x);
    inputs_.push_back({"x", x});
    checked_row_stride(op_, "x", x);
  }

  std::int64_t terms() const { return x_.sizes[x_.rank - 1]; }

  void require(const char* name, const TensorView& view) const {
    check_value(view.defined(), op_, ": ", name, " is missing");
  }
  void refuse(const char* name, const TensorView& view, const char* reason) const {
    check_value(!view.defined(), op_, ": ", name, " is present, expected none (", reason, ")");
  }

  void input_rows(const char* name, const TensorView& view, std::int64_t cols) {
    if (!view.defined()) return;
    inputs_.push_back({name, view});
    check_rows(name, view, cols);
    checked_row_stride(op_, name, view);
  }
  void output_rows(const char* name, const TensorView& view, std::int64_t cols) {
    if (!view.defined()) return;
    outputs_.push_back({name, view});
    check_rows(name, view, cols);
    checked_output_stride(op_, name, view);
  }

  void matrix(const char* name, const TensorView& view, std::int64_t cols, const char* reason) {
    check_.floating(name, view);
    inputs_.push_back({name, view});
    check_value(view.rank == 2, op_, ": ", name, " has ", view.rank, " dimensions, expected 2");
    check_.typed(name, view, x_.dtype, "the dtype of x");
    check_value(view.sizes[1] == cols, op_, ": ", name, " has ", view.sizes[1],
                " columns, expected ", cols, " (", reason, ")");
  }
  void gradient(const char* name, const TensorView& view, const char* of, const TensorView& like) {
    if (!view.defined()) return;
    outputs_.push_back({name, view});
    check_.floating(name, view);
    check_.typed_or_float32(name, view, x_.dtype, "x");
    check_.same_shape(name, view, of, like);
    check_gradient_strides(op_, name, view);
  }

  void vector(const char* name, const TensorView& view, std::int64_t count, const char* reason) {
    if (!view.defined()) return;
    inputs_.push_back({name, view});
    check_vector(name, view, count, reason);
  }
  void vector_gradient(const char* name, const TensorView& view, std::int64_t count,
                       const char* reason) {
    if (!view.defined()) return;
    outputs_.push_back({name, view});
    check_vector(name, view, count, reason);
  }

  void check_overlaps() const {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      for (const Operand& input : inputs_) check_apart(op_, outputs_[i], input);
      for (std::size_t j = 0; j < i; ++j) check_apart(op_, outputs_[i], outputs_[j]);
    }
  }

 private:
  // The leading dimensions of x, then `cols`.
  void check_rows(const char* name, const TensorView& view, std::int64_t cols) const {
    check_.typed(name, view, x_.dtype, "the dtype of x");
    TensorView like = x_;
    like.sizes[like.rank - 1] = cols;
    check_.same_shape(name, view, "the rows of x", like);
  }
  void check_vector(const char* name, const TensorView& view, std::int64_t count,
                    const char* reason) const {
    check_.floating(name, view);
    check_.typed_or_float32(name, view, x_.dtype, "x");
    check_.packed(name, view, count, reason);
    check_value(view.rank == 1, op_, ": ", name, " has ", view.rank, " dimensions, expected 1");
  }

  const char* op_;
  ArgumentChecker check_;
  const TensorView& x_;
  std::vector<Operand> inputs_;
  std::vector<Operand> outputs_;
};

// Checks the parameters of both layers; what one of the two ops lacks is absent.
template <class Arguments>
void check_layers(const char* op, MlpOperands& operands, const Arguments& a, bool gated) {
  check_value(is_gated(a.activation) == gated, op, ": activation is ", name_of(a.activation),
              gated ? ", expected a gated one" : ", expected one of a single tensor");
  operands.matrix("weight", a.weight, operands.terms(), "the last dimension of x");
  const std::int64_t hidden = a.weight.sizes[0];
  operands.vector("bias", a.bias, hidden, kRows);
  if (gated) {
    operands.matrix("up_weight", a.up_weight, operands.terms(), "the last dimension of x");
    check_value(a.up_weight.sizes[0] == hidden, op, ": up_weight has ", a.up_weight.sizes[0],
                " rows, expected ", hidden, " (", kRows, ")");
    operands.vector("up_bias", a.up_bias, hidden, kRows);
    check_type(!a.bias.defined() || !a.up_bias.defined() || a.bias.dtype == a.up_bias.dtype, op,
               ": up_bias is ", name_of(a.up_bias.dtype), ", expected ", name_of(a.bias.dtype),
               " (the dtype of bias)");
    check_value(a.z.defined() == a.up.defined(), op, ": up is ",
                a.up.defined() ? "present, expected none" : "missing, expected it",
                " (z and up are kept together)");
  } else {
    constexpr const char* kReason = "gated_mlp has it";
    operands.refuse("up_weight", a.up_weight, kReason);
    operands.refuse("up_bias", a.up_bias, kReason);
    operands.refuse("up", a.up, kReason);
  }
  if (a.down_weight.defined()) operands.matrix("down_weight", a.down_weight, hidden, kRows);
}

// The columns of y.
template <class Arguments>
std::int64_t columns_of(const Arguments& a) {
  return a.down_weight.defined() ? a.down_weight.sizes[0] : a.weight.sizes[0];
}

constexpr const char* kWithoutDown = "there is no down_weight";

}  // namespace

void check(const char* op, const Context& context, const MlpForward& a, bool gated) {
  MlpOperands operands(op, context, a.x);
  check_layers(op, operands, a, gated);
  const std::int64_t hidden = a.weight.sizes[0];
  if (a.down_weight.defined()) {
    operands.vector("down_bias", a.down_bias, columns_of(a), kDownRows);
  } else {
    operands.refuse("down_bias", a.down_bias, kWithoutDown);
    operands.refuse("h", a.h, kWithoutDown);
  }
  operands.output_rows("z", a.z, hidden);
  operands.output_rows("up", a.up, hidden);
  operands.output_rows("h", a.h, hidden);
  operands.require("y", a.y);
  operands.output_rows("y", a.y, columns_of(a));
  operands.check_overlaps();
}

void check(const char* op, const Context& context, const MlpBackward& a, bool gated) {
  MlpOperands operands(op, context, a.x);
  check_layers(op, operands, a, gated);
  check_value(a.parts >= 0, op, ": parts is ", a.parts, ", expected 0 or more");
  check_algorithm(op, context, a.dweight_algorithm);
  const std::int64_t hidden = a.weight.sizes[0];
  operands.require("dy", a.dy);
  operands.input_rows("dy", a.dy, columns_of(a));
  const auto kept = a.overwrite_z ? &MlpOperands::output_rows : &MlpOperands::input_rows;
  (operands.*kept)("z", a.z, hidden);
  (operands.*kept)("up", a.up, hidden);
  operands.input_rows("h", a.h, hidden);
  operands.output_rows("dx", a.dx, operands.terms());
  operands.gradient("dweight", a.dweight, "weight", a.weight);
  operands.vector_gradient("dbias", a.dbias, hidden, kRows);
  if (gated) {
    operands.gradient("dup_weight", a.dup_weight, "up_weight", a.up_weight);
    operands.vector_gradient("dup_bias", a.dup_bias, hidden, kRows);
  } else {
    operands.refuse("dup_weight", a.dup_weight, "gated_mlp has it");
    operands.refuse("dup_bias", a.dup_bias, "gated_mlp has it");
  }
  if (a.down_weight.defined()) {
    operands.gradient("ddown_weight", a.ddown_weight, "down_weight", a.down_weight);
    operands.vector_gradient("ddown_bias", a.ddown_bias, columns_of(a), kDownRows);
  } else {
    operands.refuse("h", a.h, kWithoutDown);
    operands.refuse("ddown_weight", a.ddown_weight, kWithoutDown);
    operands.refuse("ddown_bias", a.ddown_bias, kWithoutDown);
  }
  operands.check_overlaps();
}

}  // namespace transformer_kernels
