// SPDX-License-Identifier: MIT
#include "transformer_kernels/rope/qk_norm.h"

#include <cmath>
#include <initializer_list>

#include "core/backends.h"
#include "rope/check.h"
#include "rope/qk_norm_problem.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "qk_norm";

constexpr Backends<QkNormForwardProblem> kForward{
    .cpu = cpu::qk_norm_forward, .cuda = kHasCuda ? cuda::qk_norm_forward : nullptr};
constexpr Backends<QkNormBackwardProblem> kBackward{
    .cpu = cpu::qk_norm_backward, .cuda = kHasCuda ? cuda::qk_norm_backward : nullptr};

// One value a column of a head, of q's dtype or float32; all of one dtype.
class Weights {
 public:
  Weights(Device device, const TensorView& q, std::initializer_list<const TensorView*> views)
      : check_(kOp, device),
        q_(q),
        dtype_(q.dtype) {
    for (const TensorView* view : views) {
      if (!view->defined()) continue;
      dtype_ = view->dtype;
      break;
    }
  }

  DType dtype() const { return dtype_; }

  void* of(const char* name, const TensorView& view, bool has_tensor) const {
    if (!view.defined()) return nullptr;
    check_value(has_tensor, kOp, ": ", name, " is given, expected none without k");
    check_.floating(name, view);
    check_.typed_or_float32(name, view, q_.dtype, "q");
    check_type(view.dtype == dtype_, kOp, ": ", name, " is ", name_of(view.dtype), ", expected ",
               name_of(dtype_), " (all parameters and their gradients share one dtype)");
    check_.packed(name, view, q_.sizes[q_.rank - 1], "the last dimension of q");
    check_value(view.rank == 1, kOp, ": ", name, " has ", view.rank, " dimensions, expected 1");
    return view.data;
  }

 private:
  ArgumentChecker check_;
  const TensorView& q_;
  DType dtype_;
};

void check_eps(double eps) {
  check_value(eps >= 0, kOp, ": eps is ", eps, ", expected a number of 0 or more");
}

QkNormForwardProblem check(const Context& context, const QkNormForward& a) {
  const RopeOperands operands{
      {"q", a.q}, {"k", a.k}, {"q_normed", a.q_normed}, {"k_normed", a.k_normed}};
  const RopeProblem rope =
      RopeChecker(kOp, context.device, operands).problem(a.angles, false, false);
  const Weights weights(context.device, a.q, {&a.q_weight, &a.k_weight});
  check_eps(a.eps);
  return {.rope = rope,
          .weight_dtype = weights.dtype(),
          .q_weight = weights.of("q_weight", a.q_weight, true),
          .k_weight = weights.of("k_weight", a.k_weight, a.k.defined()),
          .eps = a.eps};
}

QkNormBackwardProblem check(const Context& context, const QkNormBackward& a) {
  const RopeOperands operands{
      {"dq_normed", a.dq_normed}, {"dk_normed", a.dk_normed}, {"dq", a.dq}, {"dk", a.dk}};
  const RopeChecker checker(kOp, context.device, operands);
  const RopeProblem rope = checker.problem(a.angles, true, false);
  const Weights weights(context.device, a.q,
                        {&a.q_weight, &a.k_weight, &a.dq_weight, &a.dk_weight});
  check_eps(a.eps);
  const bool has_k = a.dk_normed.defined();
  return {.rope = rope,
          .q = checker.like("q", a.q, operands.q),
          .k = has_k ? checker.like("k", a.k, operands.k) : Heads{},
          .weight_dtype = weights.dtype(),
          .q_weight = weights.of("q_weight", a.q_weight, true),
          .k_weight = weights.of("k_weight", a.k_weight, has_k),
          .eps = a.eps,
          .dq_weight = weights.of("dq_weight", a.dq_weight, true),
          .dk_weight = weights.of("dk_weight", a.dk_weight, has_k)};
}

bool has_no_rows(const RopeProblem& p) { return p.tokens() == 0 || p.heads() == 0 || p.dim == 0; }

}  // namespace

std::string describe(const QkNormForwardProblem& p) {
  return describe(p.rope) + (p.q_weight != nullptr || p.k_weight != nullptr ? ", weights" : "");
}

std::string describe(const QkNormBackwardProblem& p) {
  return describe(p.rope) + (p.has_sums() ? ", gradients of weights" : "");
}

void qk_norm_forward(const Context& context, const QkNormForward& arguments) {
  const QkNormForwardProblem problem = check(context, arguments);
  if (!has_no_rows(problem.rope)) run_on(kOp, kForward, context, problem);
}

void qk_norm_backward(const Context& context, const QkNormBackward& arguments) {
  const QkNormBackwardProblem problem = check(context, arguments);
  // Without rows the gradient of a weight is 0, and is still written.
  if (!has_no_rows(problem.rope) || (problem.has_sums() && problem.rope.dim > 0)) {
    run_on(kOp, kBackward, context, problem);
  }
}

}  // namespace transformer_kernels
