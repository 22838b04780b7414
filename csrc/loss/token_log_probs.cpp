// SPDX-License-Identifier: MIT
#include "transformer_kernels/loss/token_log_probs.h"

#include <cmath>

#include "core/backends.h"
#include "core/dispatch.h"
#include "core/overlap.h"
#include "loss/labels.h"
#include "loss/token_log_probs_problem.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "token_log_probs";

template <class Problem>
void check_tokens(const Context&, const Problem& p) {
  check_labels(kOp, p, [&](std::int64_t row) { return p.token(row); });
}

constexpr Backends<TokenLogProbsForwardProblem> kForward{
    .cpu = cpu::token_log_probs_forward,
    .cuda = kHasCuda ? cuda::token_log_probs_forward : nullptr,
    .numbers = check_tokens};
constexpr Backends<TokenLogProbsBackwardProblem> kBackward{
    .cpu = cpu::token_log_probs_backward,
    .cuda = kHasCuda ? cuda::token_log_probs_backward : nullptr,
    .numbers = check_tokens};

// Checks one call's operands one after the other.
class Operands {
 public:
  Operands(const Context& context, const TensorView& x) : check_(kOp, context.device), x_(x) {
    check_.floating("x", x);
    shape_ = rows_and_cols(x);
    check_value(shape_.cols > 0, kOp, ": x has shape ", shape_of(x), ", expected a class or more");
  }

  // Fills in what both passes know.
  template <class Arguments>
  void common(TokenLogProbsProblem& p, const Arguments& a) const {
    p.dtype = x_.dtype;
    p.rows = shape_.rows;
    p.cols = shape_.cols;
    p.x = x_.data;
    p.x_stride = checked_row_stride(kOp, "x", x_);
    check_.indices("target", a.target);
    check_.packed("target", a.target, shape_.rows, "the rows of x");
    p.target = a.target.data;
    p.target_dtype = a.target.dtype;
    check_value(a.softcap >= 0 && std::isfinite(a.softcap), kOp, ": softcap is ", a.softcap,
                ", expected a finite number of 0 or more");
    p.ignore_index = a.ignore_index;
    p.softcap = a.softcap;
  }

  void* numbers(const char* name, const TensorView& view, std::int64_t count,
                const char* reason) const {
    check_.typed(name, view, accumulate_dtype(x_.dtype), "the dtype of the arithmetic");
    check_.packed(name, view, count, reason);
    return view.data;
  }
  void* of_rows(const char* name, const TensorView& view) const {
    return numbers(name, view, shape_.rows, "the rows of x");
  }
  void* of_rows_if_present(const char* name, const TensorView& view) const {
    return view.defined() ? of_rows(name, view) : nullptr;
  }

  void dx(TokenLogProbsBackwardProblem& p, const TensorView& view) const {
    check_.typed("dx", view, x_.dtype, "the dtype of x");
    check_.same_shape("dx", view, "x", x_);
    p.dx = view.data;
    p.dx_stride = checked_output_stride(kOp, "dx", view);
    if (p.accumulates || !same_memory(view, x_)) check_apart(kOp, {"dx", view}, {"x", x_});
  }

 private:
  ArgumentChecker check_;
  const TensorView& x_;
  Shape2d shape_{};
};

TokenLogProbsForwardProblem check(const Context& context, const TokenLogProbsForward& a) {
  const Operands operands(context, a.x);
  TokenLogProbsForwardProblem p{};
  operands.common(p, a);
  p.log_probs = operands.of_rows_if_present("log_probs", a.log_probs);
  p.entropy = operands.of_rows_if_present("entropy", a.entropy);
  p.accuracy = operands.of_rows_if_present("accuracy", a.accuracy);
  p.top = operands.of_rows_if_present("top", a.top);
  p.spread = operands.of_rows_if_present("spread", a.spread);
  p.mean = operands.of_rows_if_present("mean", a.mean);
  check_apart(kOp,
              {{"log_probs", a.log_probs},
               {"entropy", a.entropy},
               {"accuracy", a.accuracy},
               {"top", a.top},
               {"spread", a.spread},
               {"mean", a.mean}},
              {{"x", a.x}, {"target", a.target}});
  return p;
}

TokenLogProbsBackwardProblem check(const Context& context, const TokenLogProbsBackward& a) {
  const Operands operands(context, a.x);
  TokenLogProbsBackwardProblem p{};
  operands.common(p, a);
  p.dlog_probs = operands.of_rows_if_present("dlog_probs", a.dlog_probs);
  if (a.dentropy.defined()) {
    const bool is_one = a.dentropy.rank == 0;
    p.dentropy = is_one ? operands.numbers("dentropy", a.dentropy, 1, "of all rows")
                        : operands.of_rows("dentropy", a.dentropy);
    p.dentropy_step = is_one ? 0 : 1;
    p.mean = operands.of_rows("mean", a.mean);
    if (a.divisor.defined()) p.divisor = operands.numbers("divisor", a.divisor, 1, "of dentropy");
  }
  p.top = operands.of_rows("top", a.top);
  p.spread = operands.of_rows("spread", a.spread);
  p.accumulates = a.accumulate;
  operands.dx(p, a.dx);
  check_apart(kOp, {{"dx", a.dx}},
              {{"dlog_probs", a.dlog_probs},
               {"dentropy", a.dentropy},
               {"divisor", a.divisor},
               {"target", a.target},
               {"top", a.top},
               {"spread", a.spread},
               {"mean", a.mean}});
  return p;
}

std::string described(const char* pass, const TokenLogProbsProblem& p) {
  return concat(pass, " ", name_of(p.dtype), " ", p.rows, "x", p.cols,
                p.softcap > 0 ? " capped" : "");
}

}  // namespace

std::string describe(const TokenLogProbsForwardProblem& p) { return described("forward", p); }

std::string describe(const TokenLogProbsBackwardProblem& p) {
  return concat(described("backward", p), p.accumulates ? " accumulates" : "");
}

void token_log_probs_forward(const Context& context, const TokenLogProbsForward& arguments) {
  const TokenLogProbsForwardProblem problem = check(context, arguments);
  if (problem.rows > 0) run_on(kOp, kForward, context, problem);
}

void token_log_probs_backward(const Context& context, const TokenLogProbsBackward& arguments) {
  const TokenLogProbsBackwardProblem problem = check(context, arguments);
  if (problem.rows > 0) run_on(kOp, kBackward, context, problem);
}

}  // namespace transformer_kernels
