// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/norm.h"

#include "core/check.h"
#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

struct LayerNorm {
  static constexpr const char* kOp = "layer_norm";
  static constexpr const char* kDropoutOp = "bias_dropout_add_layer_norm";
  static constexpr auto* kDropoutForward = bias_dropout_add_layer_norm_forward;
  static constexpr auto* kDropoutBackward = bias_dropout_add_layer_norm_backward;
  static constexpr bool kMean = true;
  static constexpr auto* kForward = layer_norm_forward;
  static constexpr auto* kBackward = layer_norm_backward;
};

struct RmsNorm {
  static constexpr const char* kOp = "rms_norm";
  static constexpr const char* kDropoutOp = "bias_dropout_add_rms_norm";
  static constexpr auto* kDropoutForward = bias_dropout_add_rms_norm_forward;
  static constexpr auto* kDropoutBackward = bias_dropout_add_rms_norm_backward;
  static constexpr bool kMean = false;
  static constexpr auto* kForward = rms_norm_forward;
  static constexpr auto* kBackward = rms_norm_backward;
};

// `fields` where the op has them.
template <bool kHas, class... Field>
constexpr auto fields_if(const Field&... field) {
  if constexpr (kHas) {
    return std::tuple(field...);
  } else {
    return std::tuple<>();
  }
}

std::string statistics_of(bool mean) { return mean ? "Tensor mean, Tensor rstd" : "Tensor rstd"; }

// With a residual it is "add + norm"; without statistics there is nothing to differentiate from.
template <class Norm, bool kResidual, bool kStatistics>
struct Forward {
  using Arguments = NormForward;
  static constexpr const char* kOp = Norm::kOp;
  static constexpr bool kMean = kStatistics && Norm::kMean;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("x", &Arguments::x, with_even_rows)),
                     fields_if<kResidual>(tensor("residual", &Arguments::residual, with_even_rows)),
                     std::tuple(parameter("weight", &Arguments::weight),
                                parameter("bias", &Arguments::bias), real("eps", &Arguments::eps),
                                flag("zero_centered_weight", &Arguments::zero_centered_weight)));

  static std::string name() {
    return std::string(kResidual ? "add_" : "") + kOp + (kStatistics ? "_forward" : "_inference");
  }
  static std::string returns() {
    if (!kStatistics) return "Tensor y";
    return std::string("(Tensor y, ") + (kResidual ? "Tensor sum, " : "") +
           statistics_of(Norm::kMean) + ")";
  }

  static auto run(const Context& context, Arguments& a) {
    auto results = std::tuple_cat(result(a.y, new_rows_like, a.x),
                                  result<kResidual>(a.sum, new_rows_like, a.x),
                                  result<kMean>(a.mean, empty_statistics, a.x),
                                  result<kStatistics>(a.rstd, empty_statistics, a.x));
    Norm::kForward(context, a);
    return results;
  }
};

struct BackwardArguments : NormBackward {
  TensorView bias;  // for its dtype
  bool need_dweight;
  bool need_dbias;
};

template <class Norm>
struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = Norm::kOp;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                 optional("dsum", &Arguments::dsum, with_even_rows),
                 tensor("x", &Arguments::x, with_even_rows)),
      fields_if<Norm::kMean>(tensor("mean", &Arguments::mean)),
      std::tuple(tensor("rstd", &Arguments::rstd), parameter("weight", &Arguments::weight),
                 parameter("bias", &Arguments::bias),
                 flag("zero_centered_weight", &Arguments::zero_centered_weight),
                 flag("need_dweight", &Arguments::need_dweight),
                 flag("need_dbias", &Arguments::need_dbias)));

  static std::string name() { return std::string(kOp) + "_backward"; }
  static std::string returns() { return "(Tensor dx, Tensor dweight, Tensor dbias)"; }

  static auto run(const Context& context, Arguments& a) {
    auto dx = result(a.dx, new_rows_like, a.x);
    const Tensor dweight =
        result_if(a.need_dweight && a.weight.defined(), a.dweight, a.weight, a.x);
    const Tensor dbias = result_if(a.need_dbias && a.bias.defined(), a.dbias, a.bias, a.x);
    Norm::kBackward(context, a);
    return std::tuple_cat(dx, std::tuple(dweight, dbias));
  }
};

// ---- of dropout(x + x_bias) + residual ----------------------------------------------------------

template <class Norm>
struct DropoutForward {
  using Arguments = BiasDropoutAddNormForward;
  static constexpr const char* kOp = Norm::kDropoutOp;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_even_rows), parameter("x_bias", &Arguments::x_bias),
      tensor("residual", &Arguments::residual, with_even_rows),
      parameter("weight", &Arguments::weight), parameter("bias", &Arguments::bias),
      optional("seed", &Arguments::seed), real("p", &Arguments::p), real("eps", &Arguments::eps),
      flag("zero_centered_weight", &Arguments::zero_centered_weight));

  static std::string name() { return std::string(kOp) + "_forward"; }
  static std::string returns() {
    return "(Tensor y, Tensor sum, " + statistics_of(Norm::kMean) + ")";
  }

  static auto run(const Context& context, Arguments& a) {
    auto results = std::tuple_cat(
        result(a.y, new_rows_like, a.x), result(a.sum, new_rows_like, a.residual),
        result<Norm::kMean>(a.mean, empty_statistics, a.x), result(a.rstd, empty_statistics, a.x));
    Norm::kDropoutForward(context, a);
    return results;
  }
};

struct DropoutBackwardArguments : BiasDropoutAddNormBackward {
  TensorView x_bias;  // as bias, for its dtype
  TensorView bias;
  bool need_dx_bias;
  bool need_dweight;
  bool need_dbias;
};

template <class Norm>
struct DropoutBackward {
  using Arguments = DropoutBackwardArguments;
  static constexpr const char* kOp = Norm::kDropoutOp;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                 optional("dsum", &Arguments::dsum, with_even_rows),
                 tensor("sum", &Arguments::x, with_even_rows)),
      fields_if<Norm::kMean>(tensor("mean", &Arguments::mean)),
      std::tuple(tensor("rstd", &Arguments::rstd), parameter("x_bias", &Arguments::x_bias),
                 parameter("weight", &Arguments::weight), parameter("bias", &Arguments::bias),
                 optional("seed", &Arguments::seed), real("p", &Arguments::p),
                 flag("zero_centered_weight", &Arguments::zero_centered_weight),
                 flag("need_dx_bias", &Arguments::need_dx_bias),
                 flag("need_dweight", &Arguments::need_dweight),
                 flag("need_dbias", &Arguments::need_dbias)));

  static std::string name() { return std::string(kOp) + "_backward"; }
  static std::string returns() {
    return "(Tensor dx, Tensor dx_bias, Tensor dresidual, Tensor dweight, Tensor dbias)";
  }

  static auto run(const Context& context, Arguments& a) {
    auto dx = result(a.dx, new_rows_like, a.dy);
    const Tensor dx_bias =
        result_if(a.need_dx_bias && a.x_bias.defined(), a.dx_bias, a.x_bias, a.dy);
    auto dresidual = result(a.dresidual, new_rows_like, a.x);
    const Tensor dweight =
        result_if(a.need_dweight && a.weight.defined(), a.dweight, a.weight, a.dy);
    const Tensor dbias = result_if(a.need_dbias && a.bias.defined(), a.dbias, a.bias, a.dy);
    Norm::kDropoutBackward(context, a);
    return std::tuple_cat(dx, std::tuple(dx_bias), dresidual, std::tuple(dweight, dbias));
  }
};

using Ops = RawOps<Forward<LayerNorm, false, false>, Forward<LayerNorm, false, true>,
                   Forward<LayerNorm, true, true>, Backward<LayerNorm>,
                   Forward<RmsNorm, false, false>, Forward<RmsNorm, false, true>,
                   Forward<RmsNorm, true, true>, Backward<RmsNorm>, DropoutForward<LayerNorm>,
                   DropoutBackward<LayerNorm>, DropoutForward<RmsNorm>, DropoutBackward<RmsNorm>>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) Ops::implement(m);
}

}  // namespace transformer_kernels::torch_ops
