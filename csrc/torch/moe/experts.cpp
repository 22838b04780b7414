// SPDX-License-Identifier: MIT
#include "transformer_kernels/moe/experts.h"

#include <array>

#include "core/dispatch.h"
#include "torch/linear/operands.h"
#include "torch/linear/rows.h"

namespace transformer_kernels::torch_ops {
namespace {

// Without up_weight, gate has the columns of gate and up.
template <class Pass>
using Arguments = GatedArguments<Pass, 1>;

// Splits a tensor of gate and up where it is there.
void split_if(TensorView& both, TensorView& up, int dimension) {
  if (both.rank > dimension) up = split(both, dimension);
}

constexpr const char* kName = "moe_experts";

struct Forward {
  using Arguments = torch_ops::Arguments<MoeExpertsForward>;
  static constexpr const char* kOp = kName;
  static constexpr const char* kPass = "_forward";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("x", &Arguments::x, with_aligned_rows),
      tensor("weights", &Arguments::weights, contiguous),
      tensor("offsets", &Arguments::offsets, packed_indices),
      tensor("tokens", &Arguments::tokens, packed_indices),
      tensor("places", &Arguments::places, packed_indices), tensor("weight", &Arguments::weight),
      optional("up_weight", &Arguments::up_weight), parameter("bias", &Arguments::bias),
      parameter("up_bias", &Arguments::up_bias), tensor("down_weight", &Arguments::down_weight),
      parameter("down_bias", &Arguments::down_bias), integer("activation", &Arguments::number),
      flag("gated", &Arguments::gated));
  static constexpr auto kResults =
      std::tuple(result("y", &Arguments::y,
                        [](const Arguments& a) {
                          const std::array sizes{size_or_0(a.x, 0), size_or_0(a.down_weight, 1)};
                          return layout_of(a.x.device, sizes, a.x.dtype);
                        }),
                 result("gate", &Arguments::gate,
                        [](const Arguments& a) {
                          const std::array sizes{a.places.numel(), size_or_0(a.weight, 1)};
                          return layout_of(a.x.device, sizes, a.x.dtype);
                        }),
                 result("up", &Arguments::up, [](const Arguments& a) {
                   if (!a.up_weight.defined()) return TensorView{};
                   const std::array sizes{a.places.numel(), size_or_0(a.up_weight, 1)};
                   return layout_of(a.x.device, sizes, a.x.dtype);
                 }));

  static void prepare(Arguments& a) { a.prepare(kOp); }

  static void call(const Context& context, Arguments& a) {
    if (a.in_one()) {
      split_if(a.weight, a.up_weight, 1);
      split_if(a.gate, a.up, 1);
    }
    moe_experts_forward(context, a);
  }
  static constexpr auto* kCall = call;
};

struct BackwardArguments : Arguments<MoeExpertsBackward> {
  TensorView bias;  // for their dtypes
  TensorView up_bias;
  bool need_dx;
  bool need_dweights;
  bool need_dweight;
  bool need_dbias;
  bool need_ddown_weight;
  bool need_ddown_bias;
};

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = kName;
  static constexpr const char* kPass = "_backward";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &Arguments::dy, with_aligned_rows),
      tensor("x", &Arguments::x, with_aligned_rows),
      tensor("weights", &Arguments::weights, contiguous),
      tensor("offsets", &Arguments::offsets, packed_indices),
      tensor("tokens", &Arguments::tokens, packed_indices),
      tensor("places", &Arguments::places, packed_indices), tensor("weight", &Arguments::weight),
      optional("up_weight", &Arguments::up_weight), parameter("bias", &Arguments::bias),
      parameter("up_bias", &Arguments::up_bias), tensor("down_weight", &Arguments::down_weight),
      parameter("down_bias", &Arguments::down_bias),
      tensor("gate", &Arguments::gate, with_aligned_rows),
      tensor("up", &Arguments::up, with_aligned_rows), integer("activation", &Arguments::number),
      flag("gated", &Arguments::gated), flag("need_dx", &Arguments::need_dx),
      flag("need_dweights", &Arguments::need_dweights),
      flag("need_dweight", &Arguments::need_dweight), flag("need_dbias", &Arguments::need_dbias),
      flag("need_ddown_weight", &Arguments::need_ddown_weight),
      flag("need_ddown_bias", &Arguments::need_ddown_bias));
  static constexpr auto kResults = std::tuple(
      result_if(&Arguments::need_dx, "dx", &Arguments::dx, rows_like, &Arguments::x),
      result_if(&Arguments::need_dweights, "dweights", &Arguments::dweights, rows_like,
                &Arguments::weights),
      result_if(&Arguments::need_dweight, "dweight", &Arguments::dweight, rows_like,
                &Arguments::weight),
      result_if(&Arguments::need_dweight, "dup_weight", &Arguments::dup_weight, rows_like,
                &Arguments::up_weight),
      result_if(&Arguments::need_dbias, "dbias", &Arguments::dbias, rows_like, &Arguments::bias),
      result_if(&Arguments::need_dbias, "dup_bias", &Arguments::dup_bias, rows_like,
                &Arguments::up_bias),
      result_if(&Arguments::need_ddown_weight, "ddown_weight", &Arguments::ddown_weight, rows_like,
                &Arguments::down_weight),
      result_if(&Arguments::need_ddown_bias, "ddown_bias", &Arguments::ddown_bias, rows_like,
                &Arguments::down_bias));

  static void prepare(Arguments& a) {
    a.prepare(kOp);
    if (!a.up_weight.defined()) a.up = {};  // the forward pass returned none
  }

  static void call(const Context& context, Arguments& a) {
    if (!a.gated || a.up_weight.defined()) return moe_experts_backward(context, a);
    split_if(a.weight, a.up_weight, 1);
    split_if(a.gate, a.up, 1);
    split_if(a.dweight, a.dup_weight, 1);
    moe_experts_backward(context, a);
  }
  static constexpr auto* kCall = call;
};

using Ops = RawOps<Forward, Backward>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
