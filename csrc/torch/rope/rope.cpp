// SPDX-License-Identifier: MIT
#include "transformer_kernels/rope/rope.h"

#include "torch/rope/angle_fields.h"

namespace transformer_kernels::torch_ops {
namespace {

template <class A>
constexpr auto angle_fields() {
  return std::tuple_cat(std::tuple(tensor("cos", angle<A>(&RopeAngles::cos), with_even_columns),
                                   tensor("sin", angle<A>(&RopeAngles::sin), with_even_columns)),
                        position_fields<A>());
}

struct Forward {
  using Arguments = RopeForward;
  static constexpr const char* kOp = "rope";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = rope_forward;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("q", &Arguments::q, with_even_columns),
                                optional("k", &Arguments::k, with_even_columns)),
                     angle_fields<Arguments>());
  static constexpr auto kResults =
      std::tuple(result("q_rotated", &Arguments::q_rotated, heads_like, &Arguments::q),
                 result("k_rotated", &Arguments::k_rotated, heads_like, &Arguments::k));

  static void prepare(Arguments& a) { broadcast_ids(kOp, a.angles, a.q); }
};

struct Backward {
  using Arguments = RopeBackward;
  static constexpr const char* kOp = "rope";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = rope_backward;
  static constexpr auto kLike = &Arguments::dq_rotated;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dq_rotated", &Arguments::dq_rotated, with_even_columns),
                                tensor("dk_rotated", &Arguments::dk_rotated, with_even_columns)),
                     angle_fields<Arguments>());
  static constexpr auto kResults =
      std::tuple(result("dq", &Arguments::dq, heads_like, &Arguments::dq_rotated),
                 result("dk", &Arguments::dk, heads_like, &Arguments::dk_rotated));

  static void prepare(Arguments& a) {
    drop_absent(a.dk_rotated);
    broadcast_ids(kOp, a.angles, a.dq_rotated);
  }
};

struct InPlace {
  using Arguments = RopeForward;
  static constexpr const char* kOp = "rope";
  static constexpr const char* kPass = "_";
  static constexpr auto* kCall = rope_forward;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(written("q", &Arguments::q), optional_written("k", &Arguments::k)),
                     angle_fields<Arguments>());
  static constexpr auto kResults = std::tuple<>();

  static void prepare(Arguments& a) {
    Forward::prepare(a);
    a.q_rotated = a.q;
    a.k_rotated = a.k;
  }
};

using Ops = RawOps<Forward, Backward, InPlace>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
