// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/rms_norm.h"

#include "torch/norm/norm_outputs.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "rms_norm";

using Parameter = const std::optional<Tensor>&;

Tensor rms_norm_inference_op(const Tensor& x_in, std::optional<Tensor> weight,
                             std::optional<Tensor> bias, double eps, bool zero_centered_weight) {
  return translate_errors([&] {
    const Tensor x = with_even_rows(kOp, "x", x_in);
    const CallContext context(x);
    Tensor y = new_rows_like(x);
    rms_norm_forward(context, {.x = view_of(kOp, "x", x),
                               .weight = view_of(kOp, "weight", weight),
                               .bias = view_of(kOp, "bias", bias),
                               .y = view_of(kOp, "y", y),
                               .eps = eps,
                               .zero_centered_weight = zero_centered_weight});
    return y;
  });
}

struct ForwardResult {
  Tensor y, sum, rstd;
};

ForwardResult forward(const Tensor& x_in, Parameter residual_in, Parameter weight, Parameter bias,
                      double eps, bool zero_centered_weight) {
  return translate_errors([&] {
    const Tensor x = with_even_rows(kOp, "x", x_in);
    const std::optional<Tensor> residual = with_even_rows(kOp, "residual", residual_in);
    const CallContext context(x);
    ForwardResult out{new_rows_like(x), residual ? new_rows_like(x) : x, empty_statistics(x)};
    rms_norm_forward(context, {.x = view_of(kOp, "x", x),
                               .residual = view_of(kOp, "residual", residual),
                               .weight = view_of(kOp, "weight", weight),
                               .bias = view_of(kOp, "bias", bias),
                               .y = view_of(kOp, "y", out.y),
                               .sum = view_if(residual.has_value(), kOp, "sum", out.sum),

                               .rstd = view_of(kOp, "rstd", out.rstd),
                               .eps = eps,
                               .zero_centered_weight = zero_centered_weight});
    return out;
  });
}

std::tuple<Tensor, Tensor> rms_norm_forward_op(const Tensor& x, std::optional<Tensor> weight,
                                               std::optional<Tensor> bias, double eps,
                                               bool zero_centered_weight) {
  ForwardResult out = forward(x, std::nullopt, weight, bias, eps, zero_centered_weight);
  return {out.y, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_forward_op(const Tensor& x, const Tensor& residual,
                                                           std::optional<Tensor> weight,
                                                           std::optional<Tensor> bias, double eps,
                                                           bool zero_centered_weight) {
  ForwardResult out = forward(x, residual, weight, bias, eps, zero_centered_weight);
  return {out.y, out.sum, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm_backward_op(
    const Tensor& dy_in, std::optional<Tensor> dsum_in, const Tensor& x_in, const Tensor& rstd,
    std::optional<Tensor> weight, bool zero_centered_weight, bool need_dweight, bool need_dbias) {
  return translate_errors([&]() -> std::tuple<Tensor, Tensor, Tensor> {
    const Tensor x = with_even_rows(kOp, "x", x_in);
    const Tensor dy = with_even_rows(kOp, "dy", dy_in);
    const std::optional<Tensor> dsum = with_even_rows(kOp, "dsum", dsum_in);
    const CallContext context(x);
    Tensor dx = new_rows_like(x);
    Tensor dweight = empty_parameter_gradient(kOp, x, weight, need_dweight);
    Tensor dbias = empty_parameter_gradient(kOp, x, weight, need_dbias);
    rms_norm_backward(context, {.dy = view_of(kOp, "dy", dy),
                                .dsum = view_of(kOp, "dsum", dsum),
                                .x = view_of(kOp, "x", x),

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
  m.impl("rms_norm_inference", TORCH_BOX(&rms_norm_inference_op));
  m.impl("rms_norm_forward", TORCH_BOX(&rms_norm_forward_op));
  m.impl("add_rms_norm_forward", TORCH_BOX(&add_rms_norm_forward_op));
  m.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward_op));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) {
  m.def(
      "rms_norm_inference(Tensor x, Tensor? weight, Tensor? bias, float eps, "
      "bool zero_centered_weight) -> Tensor");
  m.def(
      "rms_norm_forward(Tensor x, Tensor? weight, Tensor? bias, float eps, "
      "bool zero_centered_weight) -> (Tensor y, Tensor rstd)");
  m.def(
      "add_rms_norm_forward(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps, "
      "bool zero_centered_weight) -> (Tensor y, Tensor sum, Tensor rstd)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor? dsum, Tensor x, Tensor rstd, Tensor? weight, "
      "bool zero_centered_weight, bool need_dweight, bool need_dbias) "
      "-> (Tensor dx, Tensor dweight, Tensor dbias)");
}

STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) { implement(m); }

}  // namespace transformer_kernels::torch_ops
