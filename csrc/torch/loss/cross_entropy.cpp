// SPDX-License-Identifier: MIT
#include "transformer_kernels/loss/cross_entropy.h"

#include <algorithm>

#include "core/dispatch.h"
#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kName = "cross_entropy";

// Arguments as PyTorch has them, beside those of the C++ functions.
struct ForwardArguments : CrossEntropyForward {
  std::int64_t reduction_number;
  bool wide;  // the loss is of the arithmetic's type, not of x's
};
struct BackwardArguments : CrossEntropyBackward {
  std::int64_t reduction_number;
};

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
                    real("softcap", &A::softcap), integer("reduction", &A::reduction_number));
}
template <class X>
constexpr auto forward_fields(X x) {
  using A = ForwardArguments;
  return std::tuple_cat(shared_fields<A>(x), numbers<A>(), std::tuple(flag("wide", &A::wide)));
}

template <class A>
void set_reduction(A& a) {
  const std::int64_t number = a.reduction_number;
  check_value(number >= 0 && number <= 2, kName, ": reduction is ", number,
              ", expected 0 (none), 1 (mean) or 2 (sum)");
  a.reduction = static_cast<Reduction>(number);
}

Tensor filled(TensorView& view, const Tensor& tensor) {
  view = view_of(kName, "result", tensor);
  return tensor;
}

// One number a row, or one where rows are reduced.
Tensor new_loss(ForwardArguments& a) {
  set_reduction(a);
  const bool reduced = a.reduction != Reduction::kNone;
  const std::size_t rank = reduced ? 0 : std::max(a.x.rank - 1, 0);
  const DType dtype = a.wide ? accumulate_dtype(a.x.dtype) : a.x.dtype;
  return filled(a.loss, empty(a.x.device, {a.x.sizes.data(), rank}, dtype));
}

// Without statistics there is nothing to differentiate from.
template <bool kStatistics>
struct Forward {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = kName;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = forward_fields(tensor("x", &Arguments::x, with_even_rows));
  static std::string name() {
    return kStatistics ? "cross_entropy_forward" : "cross_entropy_inference";
  }
  static std::string returns() {
    return kStatistics ? "(Tensor loss, Tensor top, Tensor spread, Tensor share, Tensor total)"
                       : "Tensor loss";
  }

  static auto run(const Context& context, Arguments& a) {
    Tensor loss = new_loss(a);
    if constexpr (kStatistics) {
      const Tensor top = filled(a.top, empty_statistics(a.x));
      const Tensor spread = filled(a.spread, empty_statistics(a.x));
      const Tensor share = filled(a.share, empty_statistics(a.x));
      Tensor total = absent(a.x);
      if (a.reduction == Reduction::kMean) {
        total = filled(a.total, empty(a.x.device, {}, accumulate_dtype(a.x.dtype)));
      }
      cross_entropy_forward(context, a);
      return std::tuple(loss, top, spread, share, total);
    } else {
      cross_entropy_forward(context, a);
      return loss;
    }
  }
};

// The loss and its gradient from one pass over x, which may become the gradient.
struct Gradient {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = kName;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = forward_fields(tensor("x", &Arguments::x, with_even_rows));
  static std::string name() { return "cross_entropy_gradient"; }
  static std::string returns() { return "(Tensor loss, Tensor dx)"; }

  static auto run(const Context& context, Arguments& a) {
    Tensor loss = new_loss(a);
    const Tensor dx = filled(a.dx, new_rows_like(a.x));
    cross_entropy_forward(context, a);
    return std::tuple(loss, dx);
  }
};

struct GradientInPlace {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = kName;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = forward_fields(written("x", &Arguments::x));
  static std::string name() { return "cross_entropy_gradient_"; }
  static std::string returns() { return "Tensor loss"; }

  static auto run(const Context& context, Arguments& a) {
    Tensor loss = new_loss(a);
    a.dx = a.x;
    cross_entropy_forward(context, a);
    return loss;
  }
};

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = kName;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dloss", &Arguments::dloss, contiguous)),
                     shared_fields<Arguments>(tensor("x", &Arguments::x, with_even_rows)),
                     std::tuple(tensor("top", &Arguments::top, contiguous),
                                tensor("spread", &Arguments::spread, contiguous),
                                tensor("share", &Arguments::share, contiguous),
                                tensor("total", &Arguments::total)),
                     numbers<Arguments>());
  static std::string name() { return "cross_entropy_backward"; }
  static std::string returns() { return "Tensor dx"; }

  static auto run(const Context& context, Arguments& a) {
    set_reduction(a);
    auto dx = result(a.dx, new_rows_like, a.x);
    cross_entropy_backward(context, a);
    return dx;
  }
};

struct Scale {
  using Arguments = ScaleGradient;
  static constexpr const char* kOp = "scale_gradient";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple(written("x", &Arguments::x), tensor("by", &Arguments::by));
  static std::string name() { return "scale_gradient_"; }
  static std::string returns() { return "()"; }

  static void run(const Context& context, Arguments& a) { scale_gradient(context, a); }
};

using Ops = RawOps<Forward<false>, Forward<true>, Gradient, GradientInPlace, Backward, Scale>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) Ops::implement(m);
}

}  // namespace transformer_kernels::torch_ops
