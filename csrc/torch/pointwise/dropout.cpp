// SPDX-License-Identifier: MIT
// The raw ops of dropout, alone and between a bias and a residual.
#include "transformer_kernels/pointwise/dropout.h"

#include <tuple>

#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

struct DropoutForwardOp {
  using Arguments = DropoutForward;
  static constexpr const char* kOp = "dropout";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple(tensor("x", &Arguments::x, with_even_rows), optional("seed", &Arguments::seed),
                 real("p", &Arguments::p));
  static std::string name() { return "dropout_forward"; }
  static std::string returns() { return "Tensor y"; }

  static auto run(const Context& context, Arguments& a) {
    auto y = result(a.y, new_rows_like, a.x);
    dropout_forward(context, a);
    return y;
  }
};

struct DropoutBackwardOp {
  using Arguments = DropoutBackward;
  static constexpr const char* kOp = "dropout";
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows), optional("seed", &Arguments::seed),
                 real("p", &Arguments::p));
  static std::string name() { return "dropout_backward"; }
  static std::string returns() { return "Tensor dx"; }

  static auto run(const Context& context, Arguments& a) {
    auto dx = result(a.dx, new_rows_like, a.dy);
    dropout_backward(context, a);
    return dx;
  }
};

struct BiasDropoutAddForwardOp {
  using Arguments = BiasDropoutAddForward;
  static constexpr const char* kOp = "bias_dropout_add";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple(tensor("x", &Arguments::x, with_even_rows), parameter("bias", &Arguments::bias),
                 tensor("residual", &Arguments::residual, with_even_rows),
                 optional("seed", &Arguments::seed), real("p", &Arguments::p));
  static std::string name() { return "bias_dropout_add_forward"; }
  static std::string returns() { return "Tensor y"; }

  static auto run(const Context& context, Arguments& a) {
    auto y = result(a.y, new_rows_like, a.x);
    bias_dropout_add_forward(context, a);
    return y;
  }
};

struct BiasDropoutAddBackwardArguments : BiasDropoutAddBackward {
  TensorView bias;  // for the dtype of its gradient
  bool need_dbias;
};

struct BiasDropoutAddBackwardOp {
  using Arguments = BiasDropoutAddBackwardArguments;
  static constexpr const char* kOp = "bias_dropout_add";
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows), parameter("bias", &Arguments::bias),
                 optional("seed", &Arguments::seed), real("p", &Arguments::p),
                 flag("need_dbias", &Arguments::need_dbias));
  static std::string name() { return "bias_dropout_add_backward"; }
  static std::string returns() { return "(Tensor dx, Tensor dbias)"; }

  static auto run(const Context& context, Arguments& a) {
    auto dx = result(a.dx, new_rows_like, a.dy);
    auto dbias = result_if(a.need_dbias && a.bias.defined(), a.dbias, a.bias, a.dy);
    bias_dropout_add_backward(context, a);
    return std::tuple_cat(dx, std::tuple(dbias));
  }
};

using DropoutOps =
    RawOps<DropoutForwardOp, DropoutBackwardOp, BiasDropoutAddForwardOp, BiasDropoutAddBackwardOp>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { DropoutOps::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { DropoutOps::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) DropoutOps::implement(m);
}

}  // namespace transformer_kernels::torch_ops
