// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/layer_norm.h"

#include "torch/norm/norm_outputs.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "layer_norm";

using Parameter = const std::optional<Tensor>&;

Tensor layer_norm_inference_op(const Tensor& x_in, std::optional<Tensor> weight,
                               std::optional<Tensor> bias, double eps, bool zero_centered_weight) {
  return translate_errors([&] {
    const Tensor x = with_even_rows(kOp, "x", x_in);
    const CallContext context(x);
    Tensor y = new_rows_like(x);
    layer_norm_forward(context, {.x = view_of(kOp, "x", x),
                                 .weight = view_of(kOp, "weight", weight),
                                 .bias = view_of(kOp, "bias", bias),
                                 .y = view_of(kOp, "y", y),
                                 .eps = eps,
                                 .zero_centered_weight = zero_centered_weight});
    return y;
  });
}

struct ForwardResult {
  Tensor y, sum, mean, rstd;
};

ForwardResult forward(const Tensor& x_in, Parameter residual_in, Parameter weight, Parameter bias,
                      double eps, bool zero_centered_weight) {
  return translate_errors([&] {
    const Tensor x = with_even_rows(kOp, "x", x_in);
    const std::optional<Tensor> residual = with_even_rows(kOp, "residual", residual_in);
    const CallContext context(x);
    ForwardResult out{new_rows_like(x), residual ? new_rows_like(x) : x, empty_statistics(x),
                      empty_statistics(x)};
    layer_norm_forward(context, {.x = view_of(kOp, "x", x),
                                 .residual = view_of(kOp, "residual", residual),
                                 .weight = view_of(kOp, "weight", weight),
                                 .bias = view_of(kOp, "bias", bias),
                                 .y = view_of(kOp, "y", out.y),
                                 .sum = view_if(residual.has_value(), kOp, "sum", out.sum),
                                 .mean = view_of(kOp, "mean", out.mean),
                                 .rstd = view_of(kOp, "rstd", out.rstd),
                                 .eps = eps,
                                 .zero_centered_weight = zero_centered_weight});
    return out;
  });
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_forward_op(const Tensor& x,
                                                         std::optional<Tensor> weight,
                                                         std::optional<Tensor> bias, double eps,
                                                         bool zero_centered_weight) {
  ForwardResult out = forward(x, std::nullopt, weight, bias, eps, zero_centered_weight);
  return {out.y, out.mean, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm_forward_op(
    const Tensor& x, const Tensor& residual, std::optional<Tensor> weight,
    std::optional<Tensor> bias, double eps, bool zero_centered_weight) {
  ForwardResult out = forward(x, residual, weight, bias, eps, zero_centered_weight);
  return {out.y, out.sum, out.mean, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_op(
    const Tensor& dy_in, std::optional<Tensor> dsum_in, const Tensor& x_in, const Tensor& mean,
    const Tensor& rstd, std::optional<Tensor> weight, bool zero_centered_weight, bool need_dweight,
    bool need_dbias) {
  return translate_errors([&]() -> std::tuple<Tensor, Tensor, Tensor> {
    const Tensor x = with_even_rows(kOp, "x", x_in);
    const Tensor dy = with_even_rows(kOp, "dy", dy_in);
    const std::optional<Tensor> dsum = with_even_rows(kOp, "dsum", dsum_in);
    const CallContext context(x);
    Tensor dx = new_rows_like(x);
    Tensor dweight = empty_parameter_gradient(kOp, x, weight, need_dweight);
    Tensor dbias = empty_parameter_gradient(kOp, x, weight, need_dbias);
    layer_norm_backward(context, {.dy = view_of(kOp, "dy", dy),
                                  .dsum = view_of(kOp, "dsum", dsum),
                                  .x = view_of(kOp, "x", x),
                                  .mean = view_of(kOp, "mean", mean),
                                  .rstd = view_of(kOp, "rstd", rstd),
                                  .weight = view_of(kOp, "weight", weight),
                                  .dx = view_of(kOp, "dx", dx),
                                  .dweight = view_if(need_dweight, kOp, "dweight", dweight),
                                  .dbias = view_if(need_dbias, kOp, "dbias", dbias),
                                  .zero_centered_weight = zero_centered_weight});
    return {dx, dweight, dbias};
  });
}

template <class Library>
void implement(Library& m) {
  m.impl("layer_norm_inference", TORCH_BOX(&layer_norm_inference_op));
  m.impl("layer_norm_forward", TORCH_BOX(&layer_norm_forward_op));
  m.impl("add_layer_norm_forward", TORCH_BOX(&add_layer_norm_forward_op));
  m.impl("layer_norm_backward", TORCH_BOX(&layer_norm_backward_op));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  m.def(
      "layer_norm_inference(Tensor x, Tensor? weight, Tensor? bias, float eps, "
      "bool zero_centered_weight) -> Tensor");
  m.def(
      "layer_norm_forward(Tensor x, Tensor? weight, Tensor? bias, float eps, "
      "bool zero_centered_weight) -> (Tensor y, Tensor mean, Tensor rstd)");
  m.def(
      "add_layer_norm_forward(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps, "
      "bool zero_centered_weight) -> (Tensor y, Tensor sum, Tensor mean, Tensor rstd)");
  m.def(
      "layer_norm_backward(Tensor dy, Tensor? dsum, Tensor x, Tensor mean, Tensor rstd, Tensor? "
      "weight, "
      "bool zero_centered_weight, bool need_dweight, bool need_dbias) "
      "-> (Tensor dx, Tensor dweight, Tensor dbias)");
}

STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) { implement(m); }

}  // namespace transformer_kernels::torch_ops
