// SPDX-License-Identifier: MIT
#include "transformer_kernels/softmax/softmax.h"

#include "core/backends.h"
#include "torch/convert.h"

#include <torch/csrc/stable/ops.h>

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "softmax";

Tensor softmax_forward_op(const Tensor& x_in, std::optional<Tensor> mask_in, double scale,
                          bool causal, bool log) {
  return translate_errors([&] {
    const Tensor x = with_even_rows(kOp, "x", x_in);
    const std::optional<Tensor> mask = with_even_columns(mask_in);
    const CallContext context(x);
    Tensor y = new_rows_like(x);
    const TensorView x_view = view_of(kOp, "x", x);
    softmax_forward(context, {.x = x_view,
                              .mask = mask ? broadcast_to(kOp, "mask", view_of(kOp, "mask", *mask),
                                                          x_view, "the shape of x")
                                           : TensorView{},
                              .y = view_of(kOp, "y", y),
                              .scale = scale,
                              .causal = causal,
                              .log = log});
    return y;
  });
}

Tensor softmax_backward_op(const Tensor& dy_in, const Tensor& y_in, double scale, bool masked,
                           bool log) {
  return translate_errors([&] {
    const Tensor dy = with_even_rows(kOp, "dy", dy_in);
    const Tensor y = with_even_rows(kOp, "y", y_in);
    const CallContext context(y);
    Tensor dx = new_rows_like(y);
    softmax_backward(context, {.dy = view_of(kOp, "dy", dy),
                               .y = view_of(kOp, "y", y),
                               .dx = view_of(kOp, "dx", dx),
                               .scale = scale,
                               .masked = masked,
                               .log = log});
    return dx;
  });
}

template <class Library>
void implement(Library& m) {
  m.impl("softmax_forward", TORCH_BOX(&softmax_forward_op));
  m.impl("softmax_backward", TORCH_BOX(&softmax_backward_op));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  m.def("softmax_forward(Tensor x, Tensor? mask, float scale, bool causal, bool log) -> Tensor");
  m.def("softmax_backward(Tensor dy, Tensor y, float scale, bool masked, bool log) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) implement(m);
}

}  // namespace transformer_kernels::torch_ops
