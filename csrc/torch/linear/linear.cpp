// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/linear.h"

#include <torch/csrc/stable/ops.h>

#include "core/check.h"
#include "pointwise/problem.h"
#include "torch/linear/rows.h"

namespace transformer_kernels::torch_ops {
namespace {

// The leading dimensions of x, and as many columns as weight has rows. What either lacks is found
// with all else.
TensorView shape_of_y(const TensorView& x, const TensorView& weight) {
  return weight.rank > 0 ? with_columns(x, weight.sizes[0]) : x;
}

// The gradient has the weight's layout in memory.
Tensor gradient_of_weight(bool wanted, TensorView& view, const TensorView& weight) {
  if (!wanted) return absent(weight);
  TensorView order = weight;
  const bool by_columns = weight.rank == 2 && weight.strides[0] == 1 && weight.strides[1] > 1;
  if (by_columns) std::swap(order.sizes[0], order.sizes[1]);
  const Tensor memory = new_rows_like(order);
  const Tensor tensor = by_columns ? torch::stable::transpose(memory, 0, 1) : memory;
  view = view_of("", "result", tensor);
  return tensor;
}

// The number of an activation: its place among those of one tensor.
Pointwise activation_of(std::int64_t number) {
  check_value(number >= 0 && number < kPointwiseCount && !is_gated(static_cast<Pointwise>(number)),
              "linear_act: activation is ", number, ", expected the number of one");
  return static_cast<Pointwise>(number);
}

struct ForwardArguments : LinearForward {
  std::int64_t number;  // of the activation
};

struct BackwardArguments : LinearBackward {
  TensorView bias;  // for its dtype
  std::int64_t number;
  bool need_dx;
  bool need_dweight;
  bool need_dbias;
};

constexpr auto kOperands =
    std::tuple(tensor("x", &LinearForward::x, with_aligned_rows),
               tensor("weight", &LinearForward::weight), parameter("bias", &LinearForward::bias));

struct PlainForward {
  using Arguments = LinearForward;
  static constexpr const char* kOp = "linear";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = kOperands;
  static std::string name() { return "linear_forward"; }
  static std::string returns() { return "Tensor y"; }

  static auto run(const Context& context, Arguments& a) {
    auto y = result(a.y, new_rows_like, shape_of_y(a.x, a.weight));
    linear_forward(context, a);
    return y;
  }
};

// The op with a choice of cuBLASLt's algorithm.
struct ForwardByAlgorithm : PlainForward {
  static constexpr auto kFields =
      std::tuple_cat(kOperands, std::tuple(integer("algorithm", &LinearForward::algorithm)));
  static std::string name() { return "linear_algorithm_forward"; }
};

template <bool kSaves>
struct ActForward {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = "linear_act";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields =
      std::tuple_cat(kOperands, std::tuple(integer("activation", &Arguments::number)));
  static std::string name() { return kSaves ? "linear_act_forward" : "linear_act_inference"; }
  static std::string returns() { return kSaves ? "(Tensor y, Tensor z)" : "Tensor y"; }

  static auto run(const Context& context, Arguments& a) {
    a.activation = activation_of(a.number);
    const TensorView like = shape_of_y(a.x, a.weight);
    auto results =
        std::tuple_cat(result(a.y, new_rows_like, like), result<kSaves>(a.z, new_rows_like, like));
    linear_forward(context, a);
    return results;
  }
};

template <bool kActivates>
struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = kActivates ? "linear_act" : "linear";
  static constexpr auto kLike = &Arguments::x;

  static constexpr auto fields() {
    const auto operands =
        std::tuple(tensor("dy", &LinearBackward::dy, with_aligned_rows),
                   tensor("x", &LinearBackward::x, with_aligned_rows),
                   tensor("weight", &LinearBackward::weight), parameter("bias", &Arguments::bias));
    const auto flags = std::tuple(flag("need_dx", &Arguments::need_dx),
                                  flag("need_dweight", &Arguments::need_dweight),
                                  flag("need_dbias", &Arguments::need_dbias));
    if constexpr (kActivates) {
      const auto kept = std::tuple(tensor("z", &LinearBackward::z, with_aligned_rows),
                                   integer("activation", &Arguments::number));
      return std::tuple_cat(operands, kept, flags);
    } else {
      return std::tuple_cat(operands, flags);
    }
  }
  static constexpr auto kFields = fields();
  static std::string name() { return std::string(kOp) + "_backward"; }
  static std::string returns() { return "(Tensor dx, Tensor dweight, Tensor dbias)"; }

  static auto run(const Context& context, Arguments& a) {
    if constexpr (kActivates) a.activation = activation_of(a.number);
    const Tensor dx = result_if(a.need_dx, a.dx, a.x, a.x);
    const Tensor dweight = gradient_of_weight(a.need_dweight, a.dweight, a.weight);
    const Tensor dbias = result_if(a.need_dbias && a.bias.defined(), a.dbias, a.bias, a.x);
    linear_backward(context, a);
    return std::tuple(dx, dweight, dbias);
  }
};

struct BackwardByAlgorithm : Backward<false> {
  static constexpr auto kFields =
      std::tuple_cat(Backward<false>::kFields,
                     std::tuple(integer("dx_algorithm", &LinearBackward::dx_algorithm),
                                integer("dweight_algorithm", &LinearBackward::dweight_algorithm)));
  static std::string name() { return "linear_algorithm_backward"; }
};

struct DactArguments : LinearDact {
  TensorView bias;  // for its dtype
  std::int64_t number;
  bool need_dbias;
  bool need_h;
};

struct Dact {
  using Arguments = DactArguments;
  static constexpr const char* kOp = "linear_dact";
  static constexpr auto kLike = &Arguments::z;
  static constexpr auto kFields = std::tuple(
      tensor("dy", &LinearDact::dy, with_aligned_rows), tensor("weight", &LinearDact::weight),
      parameter("bias", &DactArguments::bias), tensor("z", &LinearDact::z, with_aligned_rows),
      integer("activation", &DactArguments::number), flag("need_dbias", &DactArguments::need_dbias),
      flag("need_h", &DactArguments::need_h));
  static std::string name() { return kOp; }
  static std::string returns() { return "(Tensor dz, Tensor dbias, Tensor h)"; }

  static auto run(const Context& context, Arguments& a) {
    a.activation = activation_of(a.number);
    auto dz = result(a.dz, new_rows_like, a.z);
    const Tensor dbias = result_if(a.need_dbias && a.bias.defined(), a.dbias, a.bias, a.z);
    const Tensor h = result_if(a.need_h, a.h, a.z, a.z);
    linear_dact(context, a);
    return std::tuple_cat(dz, std::tuple(dbias, h));
  }
};

using Ops = RawOps<PlainForward, ForwardByAlgorithm, Backward<false>, BackwardByAlgorithm,
                   ActForward<true>, ActForward<false>, Backward<true>, Dact>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) { Ops::implement(m); }

}  // namespace transformer_kernels::torch_ops
