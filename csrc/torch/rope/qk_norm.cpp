// SPDX-License-Identifier: MIT
#include "transformer_kernels/rope/qk_norm.h"

#include "torch/rope/angle_fields.h"

namespace transformer_kernels::torch_ops {
namespace {

// Tables are optional here.
template <class A>
constexpr auto shared_fields() {
  return std::tuple_cat(
      std::tuple(tensor("q", &A::q, with_even_columns), optional("k", &A::k, with_even_columns),
                 parameter("q_weight", &A::q_weight), parameter("k_weight", &A::k_weight),
                 optional("cos", angle<A>(&RopeAngles::cos), with_even_columns),
                 optional("sin", angle<A>(&RopeAngles::sin), with_even_columns)),
      position_fields<A>(), std::tuple(real("eps", &A::eps)));
}

struct Forward {
  using Arguments = QkNormForward;
  static constexpr const char* kOp = "qk_norm";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = qk_norm_forward;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields = shared_fields<Arguments>();
  static constexpr auto kResults =
      std::tuple(result("q_normed", &Arguments::q_normed, heads_like, &Arguments::q),
                 result("k_normed", &Arguments::k_normed, heads_like, &Arguments::k));

  static void prepare(Arguments& a) { broadcast_ids(kOp, a.angles, a.q); }
};

struct BackwardArguments : QkNormBackward {
  bool need_dq_weight, need_dk_weight;
};

struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = "qk_norm";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = qk_norm_backward;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dq_normed", &Arguments::dq_normed, with_even_columns),
                                tensor("dk_normed", &Arguments::dk_normed, with_even_columns)),
                     shared_fields<Arguments>(),
                     std::tuple(flag("need_dq_weight", &Arguments::need_dq_weight),
                                flag("need_dk_weight", &Arguments::need_dk_weight)));
  static constexpr auto kResults =
      std::tuple(result("dq", &Arguments::dq, heads_like, &Arguments::q),
                 result("dk", &Arguments::dk, heads_like, &Arguments::k),
                 result_if(&Arguments::need_dq_weight, "dq_weight", &Arguments::dq_weight,
                           rows_like, &Arguments::q_weight),
                 result_if(&Arguments::need_dk_weight, "dk_weight", &Arguments::dk_weight,
                           rows_like, &Arguments::k_weight));

  static void prepare(Arguments& a) {
    if (!a.k.defined()) a.dk_normed = {};
    broadcast_ids(kOp, a.angles, a.q);
  }
};

using Ops = RawOps<Forward, Backward>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
