// SPDX-License-Identifier: MIT
#include "transformer_kernels/graph/gather_reduce.h"

#include "core/check.h"
#include "torch/graph/edges.h"

namespace transformer_kernels::torch_ops {
namespace {

Reduce reduce_of(const char* op, std::int64_t number) {
  check_value(number >= 0 && number <= 2, op, ": reduce is ", number,
              ", expected 0 (sum), 1 (mean) or 2 (max)");
  return static_cast<Reduce>(number);
}

struct GatherForward {
  using Arguments = GatherReduceForward;
  static constexpr const char* kOp = "gather_reduce";
  static constexpr const char* kPass = "_forward";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("x", &Arguments::x, with_even_rows)), edge_fields<Arguments>(),
      std::tuple(parameter("weight", &Arguments::weight),
                 choice("reduce", &Arguments::reduce, reduce_of)));
  // `chosen` has no elements unless the reduction chooses, and the dtype of the edges' numbers.
  static constexpr auto kResults = std::tuple(
      result(
          "y", &Arguments::y,
          [](const Arguments& a) { return matrix(a.x, segments_of(a.edges), size_or_0(a.x, 1)); }),
      result("chosen", &Arguments::chosen, [](const Arguments& a) {
        TensorView like = a.edges.offsets;
        if (!is_index(like.dtype)) like.dtype = DType::kInt64;
        like.device = a.x.device;
        if (a.reduce == Reduce::kMax) return matrix(like, segments_of(a.edges), size_or_0(a.x, 1));
        return layout_of(like.device, std::array<std::int64_t, 1>{0}, like.dtype);
      }));

  static void call(const Context& context, Arguments& a) {
    if (a.reduce != Reduce::kMax) a.chosen = {};
    gather_reduce_forward(context, a);
  }
  static constexpr auto* kCall = call;
};

struct GatherBackwardArguments : GatherReduceBackward {
  bool need_dx;
  bool need_dweight;
};

struct GatherBackward {
  using Arguments = GatherBackwardArguments;
  static constexpr const char* kOp = "gather_reduce";
  static constexpr const char* kPass = "_backward";
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                 tensor("x", &Arguments::x, with_even_rows)),
      edge_fields<Arguments>(),
      std::tuple(parameter("weight", &Arguments::weight), tensor("chosen", &Arguments::chosen),
                 choice("reduce", &Arguments::reduce, reduce_of),
                 flag("need_dx", &Arguments::need_dx),
                 flag("need_dweight", &Arguments::need_dweight)));
  static constexpr auto kResults =
      std::tuple(result("dx", &Arguments::dx,
                        [](const Arguments& a) {
                          if (!a.need_dx) return TensorView{};
                          return matrix(a.dy, size_or_0(a.x, 0), size_or_0(a.dy, 1));
                        }),
                 result("dweight", &Arguments::dweight, [](const Arguments& a) {
                   if (!a.need_dweight || !a.weight.defined()) return TensorView{};
                   return matrix(a.dy, edges_of(a.edges, a.x), size_or_0(a.weight, 1));
                 }));

  static void call(const Context& context, Arguments& a) {
    if (a.dx.defined() || a.dweight.defined()) gather_reduce_backward(context, a);
  }
  static constexpr auto* kCall = call;
};

struct DotArguments : EdgeDotForward {
  std::int64_t heads;
};

struct DotForward {
  using Arguments = DotArguments;
  static constexpr const char* kOp = "edge_dot";
  static constexpr const char* kPass = "_forward";
  static constexpr auto* kCall = edge_dot_forward;
  static constexpr auto kLike = &Arguments::a;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("a", &Arguments::a, with_even_rows),
                 tensor("b", &Arguments::b, with_even_rows)),
      edge_fields<Arguments, true>(), std::tuple(integer("heads", &Arguments::heads)));
  static constexpr auto kResults = std::tuple(result("y", &Arguments::y, [](const Arguments& a) {
    return matrix(a.a, edges_of(a.edges, a.b), a.heads);
  }));

  static void prepare(Arguments& a) {
    const std::int64_t cols = size_or_0(a.a, 1);
    check_value(a.heads > 0 && cols % a.heads == 0, kOp, ": heads is ", a.heads,
                ", expected a divisor of ", cols, " (the columns of a)");
  }
};

struct DotBackwardArguments : EdgeDotBackward {
  bool need_da;
  bool need_db;
};

// A matrix even where the operand is none, which is found with all else.
TensorView layout_of_operand(const TensorView& operand) {
  return matrix(operand, size_or_0(operand, 0), size_or_0(operand, 1));
}

struct DotBackward {
  using Arguments = DotBackwardArguments;
  static constexpr const char* kOp = "edge_dot";
  static constexpr const char* kPass = "_backward";
  static constexpr auto* kCall = edge_dot_backward;
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("dy", &Arguments::dy, contiguous),
                 tensor("a", &Arguments::a, with_even_rows),
                 tensor("b", &Arguments::b, with_even_rows)),
      edge_fields<Arguments, true>(),
      std::tuple(flag("need_da", &Arguments::need_da), flag("need_db", &Arguments::need_db)));
  static constexpr auto kResults = std::tuple(
      result_if(&Arguments::need_da, "da", &Arguments::da, layout_of_operand, &Arguments::a),
      result_if(&Arguments::need_db, "db", &Arguments::db, layout_of_operand, &Arguments::b));
};

using Ops = RawOps<GatherForward, GatherBackward, DotForward, DotBackward>;

}  // namespace

TFK_RAW_OPS(Ops)

}  // namespace transformer_kernels::torch_ops
