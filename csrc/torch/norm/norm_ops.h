// SPDX-License-Identifier: MIT
// The raw ops of one norm. A member of the family is given as a struct
//
//   kName, Forward and Backward (the argument structs), forward() and backward()
//
// and those with a `mean` in their structs have one in their schemas as well.
#pragma once

#include <array>
#include <string>
#include <tuple>

#include "core/backends.h"
#include "core/check.h"
#include "torch/convert.h"

namespace transformer_kernels::torch_ops {

// Gradient of a parameter: (C,) of the weight's dtype, of x's where there is no weight.
inline Tensor empty_parameter_gradient(const char* op, const Tensor& x,
                                       const std::optional<Tensor>& weight, bool needed) {
  if (!needed) return absent(x);
  const DType dtype = weight ? view_of(op, "weight", *weight).dtype : view_of(op, "x", x).dtype;
  check_value(x.dim() >= 1, op, ": x has 0 dimensions, expected at least 1");
  const std::array<std::int64_t, 1> sizes{x.size(x.dim() - 1)};
  return empty(x, sizes, dtype);
}

inline TensorView view_if(bool wanted, const char* op, const char* name, const Tensor& tensor) {
  return wanted ? view_of(op, name, tensor) : TensorView{};
}

template <class Norm>
class NormOps {
 public:
  template <class Library>
  static void define(Library& library) {
    const std::string name = Norm::kName;
    const std::string statistics = kMean ? "Tensor mean, Tensor rstd" : "Tensor rstd";
    const std::string options =
        "Tensor? weight, Tensor? bias, float eps, bool zero_centered_weight)";
    const std::string schemas[] = {
        name + "_inference(Tensor x, " + options + " -> Tensor",
        name + "_forward(Tensor x, " + options + " -> (Tensor y, " + statistics + ")",
        "add_" + name + "_forward(Tensor x, Tensor residual, " + options +
            " -> (Tensor y, Tensor sum, " + statistics + ")",
        name + "_backward(Tensor dy, Tensor? dsum, Tensor x, " + statistics +
            ", Tensor? weight, bool zero_centered_weight, bool need_dweight, bool need_dbias)"
            " -> (Tensor dx, Tensor dweight, Tensor dbias)"};
    for (const std::string& schema : schemas) library.def(schema.c_str());
  }

  template <class Library>
  static void implement(Library& library) {
    const std::string name = Norm::kName;
    library.impl((name + "_inference").c_str(), TORCH_BOX(&inference));
    library.impl((name + "_forward").c_str(), TORCH_BOX(&forward));
    library.impl(("add_" + name + "_forward").c_str(), TORCH_BOX(&add_forward));
    if constexpr (kMean) {
      library.impl((name + "_backward").c_str(), TORCH_BOX(&backward_with_mean));
    } else {
      library.impl((name + "_backward").c_str(), TORCH_BOX(&backward));
    }
  }

 private:
  using Parameter = const std::optional<Tensor>&;
  using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // dx, dweight, dbias

  static constexpr const char* kOp = Norm::kName;
  static constexpr bool kMean = requires(typename Norm::Forward arguments) { arguments.mean; };

  struct Results {
    Tensor y, sum, mean, rstd;  // sum and mean are x where the op has none
  };

  static typename Norm::Forward arguments_of(const Tensor& x, const Tensor& y, Parameter weight,
                                             Parameter bias, double eps, bool zero_centered) {
    return {.x = view_of(kOp, "x", x),
            .weight = view_of(kOp, "weight", weight),
            .bias = view_of(kOp, "bias", bias),
            .y = view_of(kOp, "y", y),
            .eps = eps,
            .zero_centered_weight = zero_centered};
  }

  static Results run(const Tensor& x_in, Parameter residual_in, Parameter weight, Parameter bias,
                     double eps, bool zero_centered) {
    return translate_errors([&] {
      const Tensor x = with_even_rows(kOp, "x", x_in);
      const std::optional<Tensor> residual = with_even_rows(kOp, "residual", residual_in);
      const CallContext context(x);
      Results out{new_rows_like(x), residual ? new_rows_like(x) : x,
                  kMean ? empty_statistics(x) : x, empty_statistics(x)};
      typename Norm::Forward a = arguments_of(x, out.y, weight, bias, eps, zero_centered);
      a.residual = view_of(kOp, "residual", residual);
      a.sum = view_if(residual.has_value(), kOp, "sum", out.sum);
      if constexpr (kMean) a.mean = view_of(kOp, "mean", out.mean);
      a.rstd = view_of(kOp, "rstd", out.rstd);
      Norm::forward(context, a);
      return out;
    });
  }

  static Tensor inference(const Tensor& x_in, std::optional<Tensor> weight,
                          std::optional<Tensor> bias, double eps, bool zero_centered_weight) {
    return translate_errors([&] {
      const Tensor x = with_even_rows(kOp, "x", x_in);
      const CallContext context(x);
      Tensor y = new_rows_like(x);
      Norm::forward(context, arguments_of(x, y, weight, bias, eps, zero_centered_weight));
      return y;
    });
  }

  static auto forward(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias,
                      double eps, bool zero_centered_weight) {
    const Results out = run(x, std::nullopt, weight, bias, eps, zero_centered_weight);
    if constexpr (kMean) {
      return std::tuple(out.y, out.mean, out.rstd);
    } else {
      return std::tuple(out.y, out.rstd);
    }
  }

  static auto add_forward(const Tensor& x, const Tensor& residual, std::optional<Tensor> weight,
                          std::optional<Tensor> bias, double eps, bool zero_centered_weight) {
    const Results out = run(x, residual, weight, bias, eps, zero_centered_weight);
    if constexpr (kMean) {
      return std::tuple(out.y, out.sum, out.mean, out.rstd);
    } else {
      return std::tuple(out.y, out.sum, out.rstd);
    }
  }

  // `mean` is null where the norm has none.
  static Gradients differentiate(const Tensor& dy_in, Parameter dsum_in, const Tensor& x_in,
                                 const Tensor* mean, const Tensor& rstd, Parameter weight,
                                 bool zero_centered, bool need_dweight, bool need_dbias) {
    return translate_errors([&]() -> Gradients {
      const Tensor x = with_even_rows(kOp, "x", x_in);
      const Tensor dy = with_even_rows(kOp, "dy", dy_in);
      const std::optional<Tensor> dsum = with_even_rows(kOp, "dsum", dsum_in);
      const CallContext context(x);
      Tensor dx = new_rows_like(x);
      Tensor dweight = empty_parameter_gradient(kOp, x, weight, need_dweight);
      Tensor dbias = empty_parameter_gradient(kOp, x, weight, need_dbias);
      typename Norm::Backward a;
      a.dy = view_of(kOp, "dy", dy);
      a.dsum = view_of(kOp, "dsum", dsum);
      a.x = view_of(kOp, "x", x);
      a.rstd = view_of(kOp, "rstd", rstd);
      a.weight = view_of(kOp, "weight", weight);
      a.dx = view_of(kOp, "dx", dx);
      a.dweight = view_if(need_dweight, kOp, "dweight", dweight);
      a.dbias = view_if(need_dbias, kOp, "dbias", dbias);
      a.zero_centered_weight = zero_centered;
      if constexpr (kMean) a.mean = view_of(kOp, "mean", *mean);
      Norm::backward(context, a);
      return {dx, dweight, dbias};
    });
  }

  static Gradients backward(const Tensor& dy, std::optional<Tensor> dsum, const Tensor& x,
                            const Tensor& rstd, std::optional<Tensor> weight,
                            bool zero_centered_weight, bool need_dweight, bool need_dbias) {
    return differentiate(dy, dsum, x, nullptr, rstd, weight, zero_centered_weight, need_dweight,
                         need_dbias);
  }

  static Gradients backward_with_mean(const Tensor& dy, std::optional<Tensor> dsum, const Tensor& x,
                                      const Tensor& mean, const Tensor& rstd,
                                      std::optional<Tensor> weight, bool zero_centered_weight,
                                      bool need_dweight, bool need_dbias) {
    return differentiate(dy, dsum, x, &mean, rstd, weight, zero_centered_weight, need_dweight,
                         need_dbias);
  }
};

}  // namespace transformer_kernels::torch_ops
