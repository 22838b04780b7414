// SPDX-License-Identifier: MIT
// The raw ops of dropout, alone and between a bias and a residual.
#include "transformer_kernels/pointwise/dropout.h"

#include "torch/fields.h"

namespace transformer_kernels::torch_ops {
namespace {

struct DropoutForwardOp {
  using Arguments = DropoutForward;
  static constexpr const char* kOp = "dropout";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = dropout_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple(tensor("x", &Arguments::x, with_even_rows), optional("seed", &Arguments::seed),
                 real("p", &Arguments::p));
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, rows_like, &Arguments::x));
};

struct DropoutBackwardOp {
  using Arguments = DropoutBackward;
  static constexpr const char* kOp = "dropout";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = dropout_backward;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows), optional("seed", &Arguments::seed),
                 real("p", &Arguments::p));
  static constexpr auto kResults =
      std::tuple(result("dx", &Arguments::dx, rows_like, &Arguments::dy));
};

struct BiasDropoutAddForwardOp {
  using Arguments = BiasDropoutAddForward;
  static constexpr const char* kOp = "bias_dropout_add";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = bias_dropout_add_forward;
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple(tensor("x", &Arguments::x, with_even_rows), parameter("bias", &Arguments::bias),
                 tensor("residual", &Arguments::residual, with_even_rows),
                 optional("seed", &Arguments::seed), real("p", &Arguments::p));
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, rows_like, &Arguments::x));
};

struct BiasDropoutAddBackwardArguments : BiasDropoutAddBackward {
  TensorView bias;  // for the dtype of its gradient
  bool need_dbias;
};

struct BiasDropoutAddBackwardOp {
  using Arguments = BiasDropoutAddBackwardArguments;
  static constexpr const char* kOp = "bias_dropout_add";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = bias_dropout_add_backward;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields =
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows), parameter("bias", &Arguments::bias),
                 optional("seed", &Arguments::seed), real("p", &Arguments::p),
                 flag("need_dbias", &Arguments::need_dbias));
  static constexpr auto kResults = std::tuple(
      result("dx", &Arguments::dx, rows_like, &Arguments::dy),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias));
};

using DropoutOps =
    RawOps<DropoutForwardOp, DropoutBackwardOp, BiasDropoutAddForwardOp, BiasDropoutAddBackwardOp>;

}  // namespace

TFK_RAW_OPS(DropoutOps)

}  // namespace transformer_kernels::torch_ops
