// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/norm.h"

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

template <class Norm, class A>
constexpr auto statistics() {
  return std::tuple_cat(fields_if<Norm::kMean>(result("mean", &A::mean, statistics_of, &A::x)),
                        std::tuple(result("rstd", &A::rstd, statistics_of, &A::x)));
}

// With a residual it is "add + norm"; without statistics there is nothing to differentiate from.
template <class Norm, bool kResidual, bool kStatistics>
struct Forward {
  using Arguments = NormForward;
  static constexpr const char* kOp = Norm::kOp;
  static constexpr const char* kPass = kStatistics ? "_forward" : "_inference";
  static constexpr auto* kCall = Norm::kForward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("x", &Arguments::x, with_even_rows)),
                     fields_if<kResidual>(tensor("residual", &Arguments::residual, with_even_rows)),
                     std::tuple(parameter("weight", &Arguments::weight),
                                parameter("bias", &Arguments::bias), real("eps", &Arguments::eps),
                                flag("zero_centered_weight", &Arguments::zero_centered_weight)));

  static constexpr auto results() {
    constexpr auto kY = std::tuple(result("y", &Arguments::y, rows_like, &Arguments::x));
    constexpr auto kSum =
        fields_if<kResidual>(result("sum", &Arguments::sum, rows_like, &Arguments::x));
    if constexpr (kStatistics) {
      return std::tuple_cat(kY, kSum, statistics<Norm, Arguments>());
    } else {
      return std::tuple_cat(kY, kSum);
    }
  }
  static constexpr auto kResults = results();

  static std::string name() { return std::string(kResidual ? "add_" : "") + kOp + kPass; }
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
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = Norm::kBackward;
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
  static constexpr auto kResults = std::tuple(
      result("dx", &Arguments::dx, rows_like, &Arguments::x),
      result_if(&Arguments::need_dweight, "dweight", &Arguments::dweight, rows_like,
                &Arguments::weight),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias));
};

// ---- of dropout(x + x_bias) + residual ----------------------------------------------------------

template <class Norm>
struct DropoutForward {
  using Arguments = BiasDropoutAddNormForward;
  static constexpr const char* kOp = Norm::kDropoutOp;
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = Norm::kDropoutForward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_even_rows), parameter("x_bias", &Arguments::x_bias),
      tensor("residual", &Arguments::residual, with_even_rows),
      parameter("weight", &Arguments::weight), parameter("bias", &Arguments::bias),
      optional("seed", &Arguments::seed), real("p", &Arguments::p), real("eps", &Arguments::eps),
      flag("zero_centered_weight", &Arguments::zero_centered_weight));
  static constexpr auto kResults =
      std::tuple_cat(std::tuple(result("y", &Arguments::y, rows_like, &Arguments::x),
                                result("sum", &Arguments::sum, rows_like, &Arguments::residual)),
                     statistics<Norm, Arguments>());
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
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = Norm::kDropoutBackward;
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
  static constexpr auto kResults = std::tuple(
      result("dx", &Arguments::dx, rows_like, &Arguments::dy),
      result_if(&Arguments::need_dx_bias, "dx_bias", &Arguments::dx_bias, rows_like,
                &Arguments::x_bias),
      result("dresidual", &Arguments::dresidual, rows_like, &Arguments::x),
      result_if(&Arguments::need_dweight, "dweight", &Arguments::dweight, rows_like,
                &Arguments::weight),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias));
};

using Ops = RawOps<Forward<LayerNorm, false, false>, Forward<LayerNorm, false, true>,
                   Forward<LayerNorm, true, true>, Backward<LayerNorm>,
                   Forward<RmsNorm, false, false>, Forward<RmsNorm, false, true>,
                   Forward<RmsNorm, true, true>, Backward<RmsNorm>, DropoutForward<LayerNorm>,
                   DropoutBackward<LayerNorm>, DropoutForward<RmsNorm>, DropoutBackward<RmsNorm>>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
