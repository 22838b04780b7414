// SPDX-License-Identifier: MIT
#include "transformer_kernels/rope/rope.h"

#include <tuple>

#include "torch/rope/angle_fields.h"

namespace transformer_kernels::torch_ops {
namespace {

constexpr const char* kOp = "rope";

template <class A>
constexpr auto angle_fields() {
  return std::tuple_cat(std::tuple(tensor("cos", &A::cos, with_even_columns),
                                   tensor("sin", &A::sin, with_even_columns)),
                        position_fields<A>());
}

struct ForwardArguments : RopeAngles {
  TensorView q, k;
};

struct Forward {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = torch_ops::kOp;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("q", &Arguments::q, with_even_columns),
                                optional("k", &Arguments::k, with_even_columns)),
                     angle_fields<Arguments>());
  static std::string name() { return "rope_forward"; }
  static std::string returns() { return "(Tensor q_rotated, Tensor k_rotated)"; }

  static auto run(const Context& context, const Arguments& a) {
    RopeForward call{.q = a.q, .k = a.k, .angles = angles_of(kOp, a, a.q), .q_rotated = {}};
    auto q = result(call.q_rotated, new_heads_like, a.q);
    const Tensor k = result_if(a.k.defined(), call.k_rotated, a.k, a.q, new_heads_like);
    rope_forward(context, call);
    return std::tuple_cat(q, std::tuple(k));
  }
};

struct BackwardArguments : RopeAngles {
  TensorView dq_rotated, dk_rotated;
};

// Without a k its gradient is one of no elements and of one dimension.
struct Backward {
  using Arguments = BackwardArguments;
  static constexpr const char* kOp = torch_ops::kOp;
  static constexpr auto kLike = &Arguments::dq_rotated;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(tensor("dq_rotated", &Arguments::dq_rotated, with_even_columns),
                                tensor("dk_rotated", &Arguments::dk_rotated, with_even_columns)),
                     angle_fields<Arguments>());
  static std::string name() { return "rope_backward"; }
  static std::string returns() { return "(Tensor dq, Tensor dk)"; }

  static auto run(const Context& context, const Arguments& a) {
    const bool has_k = a.dk_rotated.rank != 1 || a.dk_rotated.numel() != 0;
    RopeBackward call{
        .dq_rotated = a.dq_rotated, .angles = angles_of(kOp, a, a.dq_rotated), .dq = {}};
    if (has_k) call.dk_rotated = a.dk_rotated;
    auto dq = result(call.dq, new_heads_like, a.dq_rotated);
    const Tensor dk = result_if(has_k, call.dk, a.dk_rotated, a.dq_rotated, new_heads_like);
    rope_backward(context, call);
    return std::tuple_cat(dq, std::tuple(dk));
  }
};

// Tensors that the op writes.
struct WrittenField : TensorField<ForwardArguments> {
  static constexpr const char* kType = "Tensor(a!)";
};
struct OptionalWrittenField : OptionalField<ForwardArguments, TensorView> {
  static constexpr const char* kType = "Tensor(b!)?";
};

struct InPlace {
  using Arguments = ForwardArguments;
  static constexpr const char* kOp = torch_ops::kOp;
  static constexpr auto kLike = &Arguments::q;
  static constexpr auto kFields =
      std::tuple_cat(std::tuple(WrittenField{{"q", &Arguments::q, as_it_is}},
                                OptionalWrittenField{{"k", &Arguments::k, as_it_is}}),
                     angle_fields<Arguments>());
  static std::string name() { return "rope_"; }
  static std::string returns() { return "()"; }

  static void run(const Context& context, const Arguments& a) {
    rope_forward(
        context,
        {.q = a.q, .k = a.k, .angles = angles_of(kOp, a, a.q), .q_rotated = a.q, .k_rotated = a.k});
  }
};

using Ops = RawOps<Forward, Backward, InPlace>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) Ops::implement(m);
}

}  // namespace transformer_kernels::torch_ops
