// SPDX-License-Identifier: MIT
#include "transformer_kernels/softmax/softmax.h"

#include "core/check.h"
#include "torch/convert.h"

#include <torch/csrc/stable/ops.h>

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "softmax";

// The mask broadcast to x's shape by strides of 0, as torch broadcasts: aligned at the last
// dimension.
TensorView broadcast_mask(const TensorView& mask, const TensorView& x) {
  TensorView view = mask;
  view.rank = x.rank;
  bool fits = mask.rank <= x.rank;
  for (int i = x.rank - 1, j = mask.rank - 1; fits && i >= 0; --i, --j) {
    const std::int64_t size = j >= 0 ? mask.sizes[j] : 1;
    view.sizes[i] = x.sizes[i];
    view.strides[i] = size == 1 ? 0 : mask.strides[j];
    fits = size == 1 || size == x.sizes[i];
  }
  if (!fits) {
    check_value(false, kOp, ": mask has shape ", shape_of(mask),
                ", expected one that broadcasts to ", shape_of(x), " (the shape of x)");
  }
  return view;
}

// The mask, copied where its last stride is neither 0 nor 1.
std::optional<Tensor> with_even_columns(const std::optional<Tensor>& mask) {
  if (!mask || mask->dim() == 0) return mask;
  const std::int64_t last = mask->dim() - 1;
  const bool even = mask->size(last) == 1 || mask->stride(last) == 1 || mask->stride(last) == 0;
  return even ? mask : torch::stable::contiguous(*mask);
}

Tensor softmax_forward_op(const Tensor& x_in, std::optional<Tensor> mask_in, double scale,
                          bool causal, bool log) {
  return translate_errors([&] {
    const Tensor x = with_even_rows(kOp, "x", x_in);
    const std::optional<Tensor> mask = with_even_columns(mask_in);
    const CallContext context(x);
    Tensor y = new_rows_like(x);
    const TensorView x_view = view_of(kOp, "x", x);
    softmax_forward(
        context, {.x = x_view,
                  .mask = mask ? broadcast_mask(view_of(kOp, "mask", *mask), x_view) : TensorView{},
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
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) { implement(m); }

}  // namespace transformer_kernels::torch_ops
