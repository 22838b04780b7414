// SPDX-License-Identifier: MIT
#include "transformer_kernels/rope/qk_norm.h"

#include <tuple>

#include "torch/rope/angle_fields.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "qk_norm";

struct SharedArguments : RopeAngles {
  TensorView q, k, q_weight, k_weight;
  double eps;
};

// Tables are optional here.
template <class A>
constexpr auto shared_fields() {
  return std::tuple_cat(
      std::tuple(tensor("q", &A::q, with_even_columns), optional("k", &A::k, with_even_columns),
                 parameter("q_weight", &A::q_weight), parameter("k_weight", &A::k_weight),
                 optional("cos", &A::cos, with_even_columns),
                 optional("sin", &A::sin, with_even_columns)),
      position_fields<A>(), std::tuple(real("eps", &A::eps)));
}

struct Forward {
  using Arguments = SharedArguments;
  static constexpr const char* kOp = torch_ops::kOp;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields = shared_fields<Arguments>();
  static std::string name() { return "qk_norm_forward"; }
  static std::string returns() { return "(Tensor q_normed, Tensor k_normed)"; }

  static auto run(const Context& context, const Arguments& a) {
    QkNormForward call{.q = a.q,
                       .k = a.k,
                       .q_weight = a.q_weight,
                       .k_weight = a.k_weight,
                       .angles = angles_of(kOp, a, a.q),
                       .eps = a.eps,
                       .q_normed = {}};
    auto q = result(call.q_normed, new_heads_like, a.q);
    const Tensor k = result_if(a.k.defined(), call.k_normed, a.k, a.q, new_heads_like);
    qk_norm_forward(context, call);
    return std::tuple_cat(q, std::tuple(k));
  }
};

struct BackwardArguments : SharedArguments {
  TensorView dq_normed, dk_normed;
  bool need_dq_weight, need_dk_weight;
};

// Without a k its gradient is one of no elements and of one dimension.
struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = torch_ops::kOp;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dq_normed", &Arguments::dq_normed, with_even_columns),
                                tensor("dk_normed", &Arguments::dk_normed, with_even_columns)),
                     shared_fields<Arguments>(),
                     std::tuple(flag("need_dq_weight", &Arguments::need_dq_weight),
                                flag("need_dk_weight", &Arguments::need_dk_weight)));
  static std::string name() { return "qk_norm_backward"; }
  static std::string returns() {
    return "(Tensor dq, Tensor dk, Tensor dq_weight, Tensor dk_weight)";
  }

  static auto run(const Context& context, const Arguments& a) {
    const bool has_k = a.k.defined();
    QkNormBackward call{.dq_normed = a.dq_normed,
                        .q = a.q,
                        .k = a.k,
                        .q_weight = a.q_weight,
                        .k_weight = a.k_weight,
                        .angles = angles_of(kOp, a, a.q),
                        .eps = a.eps,
                        .dq = {}};
    if (has_k) call.dk_normed = a.dk_normed;
    auto dq = result(call.dq, new_heads_like, a.q);
    const Tensor dk = result_if(has_k, call.dk, a.k, a.q, new_heads_like);
    const Tensor dq_weight =
        result_if(a.need_dq_weight && a.q_weight.defined(), call.dq_weight, a.q_weight, a.q);
    const Tensor dk_weight =
        result_if(a.need_dk_weight && a.k_weight.defined(), call.dk_weight, a.k_weight, a.q);
    qk_norm_backward(context, call);
    return std::tuple_cat(dq, std::tuple(dk, dq_weight, dk_weight));
  }
};

using Ops = RawOps<Forward, Backward>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) Ops::implement(m);
}

}  // namespace transformer_kernels::torch_ops
