// SPDX-License-Identifier: MIT
#include "transformer_kernels/graph/segment_softmax.h"

#include "torch/graph/edges.h"

namespace transformer_kernels::torch_ops {
namespace {

struct ForwardArguments : Edges {
  TensorView x;
};

constexpr const char* kSoftmaxOp = "segment_softmax";

// offsets and order alone: the rows across the edges have no part in it.
template <class A>
constexpr auto segment_fields() {
  return std::tuple(tensor("offsets", &A::offsets, packed_indices),
                    optional("order", &A::order, packed_indices));
}

struct Forward {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = kSoftmaxOp;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("x", &Arguments::x, with_even_rows)), segment_fields<Arguments>());
  static std::string name() { return "segment_softmax_forward"; }
  static std::string returns() { return "Tensor y"; }

  static auto run(const Context& context, const Arguments& a) {
    SegmentSoftmaxForward call{.x = a.x, .edges = a, .y = {}};
    auto y = result(call.y, new_rows_like, a.x);
    segment_softmax_forward(context, call);
    return y;
  }
};

struct BackwardArguments : Edges {
  TensorView dy, y;
};

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = kSoftmaxOp;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                                tensor("y", &Arguments::y, with_even_rows)),
                     segment_fields<Arguments>());
  static std::string name() { return "segment_softmax_backward"; }
  static std::string returns() { return "Tensor dx"; }

  static auto run(const Context& context, const Arguments& a) {
    SegmentSoftmaxBackward call{.dy = a.dy, .y = a.y, .edges = a, .dx = {}};
    auto dx = result(call.dx, new_rows_like, a.y);
    segment_softmax_backward(context, call);
    return dx;
  }
};

using Ops = RawOps<Forward, Backward>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) Ops::implement(m);
}

}  // namespace transformer_kernels::torch_ops
