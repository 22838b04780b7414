// SPDX-License-Identifier: MIT
#include "transformer_kernels/loss/cross_entropy.h"

#include <algorithm>

#include "core/dispatch.h"
#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

struct ForwardArguments : CrossEntropyForward {
  bool wide;  // the loss is of the arithmetic's type, not of x's
};

Reduction reduction_of(const char* op, std::int64_t number) {
  check_value(number >= 0 && number <= 2, op, ": reduction is ", number,
              ", expected 0 (none), 1 (mean) or 2 (sum)");
  return static_cast<Reduction>(number);
}

template <class A, class X>
constexpr auto shared_fields(X x) {
  return std::tuple(x, optional("target", &A::target, packed_indices),
                    optional("probabilities", &A::probabilities, with_even_rows),
                    parameter("weight", &A::weight));
}
template <class A>
constexpr auto numbers() {
  return std::tuple(integer("ignore_index", &A::ignore_index),
                    real("label_smoothing", &A::label_smoothing), real("z_loss", &A::z_loss),
                    real("softcap", &A::softcap), choice("reduction", &A::reduction, reduction_of));
}
template <class X>
constexpr auto forward_fields(X x) {
  using A = ForwardArguments;
  return std::tuple_cat(shared_fields<A>(x), numbers<A>(), std::tuple(flag("wide", &A::wide)));
}

// One number a row, or one where rows are reduced.
TensorView layout_of_loss(const ForwardArguments& a) {
  const std::size_t rank = a.reduction == Reduction::kNone ? std::max(a.x.rank - 1, 0) : 0;
  const DType dtype = a.wide ? accumulate_dtype(a.x.dtype) : a.x.dtype;
  return layout_of(a.x.device, {a.x.sizes.data(), rank}, dtype);
}

TensorView layout_of_total(const ForwardArguments& a) {
  if (a.reduction != Reduction::kMean) return {};
  return layout_of(a.x.device, {}, accumulate_dtype(a.x.dtype));
}

constexpr auto kLoss = result("loss", &CrossEntropyForward::loss, layout_of_loss);

// The base of all forward passes.
struct ForwardOp {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = "cross_entropy";
  static constexpr auto* kCall = cross_entropy_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = forward_fields(tensor("x", &Arguments::x, with_even_rows));
};

struct Forward : ForwardOp {
  static constexpr const char* kPass = "_forward";
  static constexpr auto kResults =
      std::tuple(kLoss, result("top", &Arguments::top, statistics_of, &Arguments::x),
                 result("spread", &Arguments::spread, statistics_of, &Arguments::x),
                 result("share", &Arguments::share, statistics_of, &Arguments::x),
                 result("total", &Arguments::total, layout_of_total));
};

// Without statistics there is nothing to differentiate from.
struct Inference : ForwardOp {
  static constexpr const char* kPass = "_inference";
  static constexpr auto kResults = std::tuple(kLoss);
};

// The loss and its gradient from one pass over x, which may become the gradient.
struct Gradient : ForwardOp {
  static constexpr const char* kPass = "_gradient";
  static constexpr auto kResults =
      std::tuple(kLoss, result("dx", &Arguments::dx, rows_like, &Arguments::x));
};

struct GradientInPlace : ForwardOp {
  static constexpr const char* kPass = "_gradient_";
  static constexpr auto kFields = forward_fields(written("x", &Arguments::x));
  static constexpr auto kResults = std::tuple(kLoss);
  static void prepare(Arguments& a) { a.dx = a.x; }
};

struct Backward {
  using Arguments = CrossEntropyBackward;
  static constexpr const char* kOp = "cross_entropy";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = cross_entropy_backward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dloss", &Arguments::dloss, contiguous)),
                     shared_fields<Arguments>(tensor("x", &Arguments::x, with_even_rows)),
                     std::tuple(tensor("top", &Arguments::top, contiguous),
                                tensor("spread", &Arguments::spread, contiguous),
                                tensor("share", &Arguments::share, contiguous),
                                tensor("total", &Arguments::total)),
                     numbers<Arguments>());
  static constexpr auto kResults =
      std::tuple(result("dx", &Arguments::dx, rows_like, &Arguments::x));
};

struct Scale {
  using Arguments = ScaleGradient;
  static constexpr const char* kOp = "scale_gradient";
  static constexpr const char* kPass = "_";
  static constexpr auto* kCall = scale_gradient;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple(written("x", &Arguments::x), tensor("by", &Arguments::by));
  static constexpr auto kResults = std::tuple<>();
};

using Ops = RawOps<Inference, Forward, Gradient, GradientInPlace, Backward, Scale>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
