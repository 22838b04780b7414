// SPDX-License-Identifier: MIT
#include "moe/experts/checks.h"

#include "linear/grouped_operands.h"
#include "moe/dispatch/problem.h"
#include "pointwise/problem.h"
#include "transformer_kernels/index_error.h"

namespace transformer_kernels {
namespace {

// The places are read by the host where it can: products read rows by them.
void check_numbers(const char* op, const TensorView& places, const TensorView& tokens,
                   const RowGroups& groups) {
  const std::int64_t count = places.sizes[0];
  const auto* const token = static_cast<const std::int32_t*>(tokens.data);
  for (std::int64_t i = 0; i < groups.offsets[groups.count]; ++i) {
    if (token[i] >= 0 && token[i] < count) [[likely]]
      continue;
    throw IndexError(
        concat(op, ": tokens holds ", token[i], ", expected a row of x, which has ", count));
  }
  const auto* const place = static_cast<const std::int32_t*>(places.data);
  for (std::int64_t i = 0; i < groups.rows; ++i) {
    const std::int64_t at = place[i] < 0 ? ~place[i] : place[i];
    if (at < groups.rows) [[likely]]
      continue;
    throw IndexError(concat(op, ": places has ", place[i], ", expected one of ", groups.rows,
                            " places, or the complement of one"));
  }
}

std::int64_t assignments_of(const char* op, const ArgumentChecker& check,
                            const TensorView& places) {
  check.typed("places", places, DType::kInt32, "the dtype of indices");
  check_value(places.rank == 2, op, ": places has ", places.rank, " dimensions, expected 2");
  check_value(places.sizes[1] >= 1 && places.sizes[1] <= kMostAssigned, op, ": places has ",
              places.sizes[1], " columns, expected 1 to ", kMostAssigned);
  check.packed("places", places, places.numel(), "its shape");
  return places.numel();
}

// Checks what both passes have, and keeps the sizes that their other operands share.
template <class Arguments>
class Checker {
 public:
  Checker(const char* op, const Context& context, const Arguments& a)
      : op_(op),
        a_(a),
        check_(op, context.device),
        operands_(op, context, kX, a.x, a.offsets, assignments_of(op, check_, a.places), "places"),
        tokens_(a.places.sizes[0]),
        gated_(is_gated(a.activation)) {
    operands_.also_read("places", a.places);
    rows_of_tokens("x", a.x, -1);
    check_.typed("tokens", a.tokens, DType::kInt32, "the dtype of indices");
    check_.packed("tokens", a.tokens, assignments(), "the elements of places");
    operands_.also_read("tokens", a.tokens);
    weights("weights", a.weights);
    operands_.also_read("weights", a.weights);
    weight_of("weight", a.weight, -1, a.x.sizes[1]);
    hidden_ = a.weight.sizes[1];
    weight_of("down_weight", a.down_weight, -1, hidden_);
    if (gated_) {
      check_value(a.up_weight.defined(), op, ": up_weight is missing, expected it (",
                  name_of(a.activation), " is gated)");
      weight_of("up_weight", a.up_weight, hidden_, a.x.sizes[1]);
    } else {
      refuse("up_weight", a.up_weight);
      refuse("up", a.up);
    }
    operands_.bias_if_present("down_bias", a.down_bias, columns());
    if (context.device.type == DeviceType::kCpu) {
      check_numbers(op, a.places, a.tokens, operands_.groups());
    }
  }

  GroupedOperands& operands() { return operands_; }
  std::int64_t hidden() const { return hidden_; }
  std::int64_t columns() const { return a_.down_weight.sizes[1]; }

  void refuse(const char* name, const TensorView& view) const {
    check_value(gated_ || !view.defined(), op_, ": ", name, " is present, expected none (",
                name_of(a_.activation), " is not gated)");
  }
  void together(const char* name, const TensorView& one, const TensorView& other) const {
    check_value(!gated_ || one.defined() == other.defined(), op_, ": ", name, " is ",
                other.defined() ? "present, expected none" : "missing, expected it",
                " (gate and up are kept together)");
  }

  // (T, cols), any number of them where cols is -1.
  void rows_of_tokens(const char* name, const TensorView& view, std::int64_t cols) {
    operands_.matrix(name, view, tokens_, cols < 0 && view.rank == 2 ? view.sizes[1] : cols);
    checked_row_stride(op_, name, view);
    operands_.also_read(name, view);
  }
  void written_rows_of_tokens(const char* name, const TensorView& view, std::int64_t cols) {
    if (!view.defined()) return;
    operands_.matrix(name, view, tokens_, cols);
    checked_output_stride(op_, name, view);
    operands_.also_written(name, view);
  }

  void weights(const char* name, const TensorView& view) const {
    check_.typed(name, view, accumulate_dtype(a_.x.dtype), "the dtype of sums");
    check_.same_shape(name, view, "places", a_.places);
    check_.packed(name, view, assignments(), "the elements of places");
  }

 private:
  std::int64_t assignments() const { return operands_.groups().rows; }

  void weight_of(const char* name, const TensorView& view, std::int64_t rows, std::int64_t cols) {
    operands_.weight(name, view, rows, cols);
  }

  const char* op_;
  const Arguments& a_;
  ArgumentChecker check_;
  GroupedOperands operands_;
  std::int64_t tokens_;
  bool gated_;
  std::int64_t hidden_ = 0;
};

}  // namespace

void check(const char* op, const Context& context, const MoeExpertsForward& a) {
  Checker check(op, context, a);
  GroupedOperands& operands = check.operands();
  check.refuse("up_bias", a.up_bias);
  operands.bias_if_present("bias", a.bias, check.hidden());
  operands.bias_if_present("up_bias", a.up_bias, check.hidden());
  check_type(!a.bias.defined() || !a.up_bias.defined() || a.bias.dtype == a.up_bias.dtype, op,
             ": up_bias is ", name_of(a.up_bias.dtype), ", expected ", name_of(a.bias.dtype),
             " (the dtype of bias)");
  check.together("up", a.gate, a.up);
  operands.output_if_present("gate", a.gate, check.hidden());
  operands.output_if_present("up", a.up, check.hidden());
  check_value(a.y.defined(), op, ": y is missing");
  check.written_rows_of_tokens("y", a.y, check.columns());
  operands.check_overlaps();
}

void check(const char* op, const Context& context, const MoeExpertsBackward& a) {
  Checker check(op, context, a);
  GroupedOperands& operands = check.operands();
  const std::int64_t hidden = check.hidden(), columns = check.columns(), terms = a.x.sizes[1];
  check.rows_of_tokens("dy", a.dy, columns);
  check_value(a.gate.defined(), op, ": gate is missing");
  operands.input("gate", a.gate, hidden);
  check.together("up", a.gate, a.up);
  if (a.up.defined()) operands.input("up", a.up, hidden);
  check.written_rows_of_tokens("dx", a.dx, terms);
  if (a.dweights.defined()) check.weights("dweights", a.dweights);
  operands.also_written("dweights", a.dweights);
  operands.dweight_if_present("dweight", a.dweight, hidden, terms);
  operands.dbias_if_present("dbias", a.dbias, hidden);
  check.refuse("dup_weight", a.dup_weight);
  check.refuse("dup_bias", a.dup_bias);
  operands.dweight_if_present("dup_weight", a.dup_weight, hidden, terms);
  operands.dbias_if_present("dup_bias", a.dup_bias, hidden);
  operands.dweight_if_present("ddown_weight", a.ddown_weight, columns, hidden);
  operands.dbias_if_present("ddown_bias", a.ddown_bias, columns);
  operands.check_overlaps();
}

}  // namespace transformer_kernels
