// SPDX-License-Identifier: MIT
#include "transformer_kernels/graph/gather_reduce.h"

#include "core/check.h"
#include "torch/graph/edges.h"

namespace transformer_kernels::torch_ops {
namespace {

Reduce reduce_of(std::int64_t number) {
  check_value(number >= 0 && number <= 2, "gather_reduce: reduce is ", number,
              ", expected 0 (sum), 1 (mean) or 2 (max)");
  return static_cast<Reduce>(number);
}

struct GatherArguments : Edges {
  TensorView x, weight;
  std::int64_t reduce;
};

struct GatherForward {
  using Arguments = GatherArguments;
  static constexpr const char* kOp = "gather_reduce";
  static constexpr auto kLike = &Arguments::x;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("x", &Arguments::x, with_even_rows)), edge_fields<Arguments>(),
      std::tuple(optional("weight", &Arguments::weight, contiguous),
                 integer("reduce", &Arguments::reduce)));
  static std::string name() { return "gather_reduce_forward"; }
  static std::string returns() { return "(Tensor y, Tensor chosen)"; }

  static auto run(const Context& context, const Arguments& a) {
    GatherReduceForward call{
        .x = a.x, .edges = a, .weight = a.weight, .reduce = reduce_of(a.reduce), .y = {}};
    const std::int64_t cols = size_or_0(a.x, 1);
    const Tensor y = matrix(call.y, a.x, segments_of(a), cols);
    const DType numbers = is_index(a.offsets.dtype) ? a.offsets.dtype : DType::kInt64;
    const Tensor chosen =
        matrix_if(call.reduce == Reduce::kMax, call.chosen, a.x, segments_of(a), cols, numbers);
    gather_reduce_forward(context, call);
    return std::tuple(y, chosen);
  }
};

struct GatherBackwardArguments : GatherArguments {
  TensorView dy, chosen;
  bool need_dx;
  bool need_dweight;
};

struct GatherBackward {
  using Arguments = GatherBackwardArguments;
  static constexpr const char* kOp = "gather_reduce";
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("dy", &Arguments::dy, with_even_rows),
                 tensor("x", &Arguments::x, with_even_rows)),
      edge_fields<Arguments>(),
      std::tuple(optional("weight", &Arguments::weight, contiguous),
                 tensor("chosen", &Arguments::chosen), integer("reduce", &Arguments::reduce),
                 flag("need_dx", &Arguments::need_dx),
                 flag("need_dweight", &Arguments::need_dweight)));
  static std::string name() { return "gather_reduce_backward"; }
  static std::string returns() { return "(Tensor dx, Tensor dweight)"; }

  static auto run(const Context& context, const Arguments& a) {
    GatherReduceBackward call{.dy = a.dy,
                              .x = a.x,
                              .edges = a,
                              .weight = a.weight,
                              .chosen = a.chosen,
                              .reduce = reduce_of(a.reduce)};
    const bool need_dweight = a.need_dweight && a.weight.defined();
    const Tensor dx =
        matrix_if(a.need_dx, call.dx, a.dy, size_or_0(a.x, 0), size_or_0(a.dy, 1), a.dy.dtype);
    const Tensor dweight = matrix_if(need_dweight, call.dweight, a.dy, edges_of(a, a.x),
                                     size_or_0(a.weight, 1), a.dy.dtype);
    if (a.need_dx || need_dweight) gather_reduce_backward(context, call);
    return std::tuple(dx, dweight);
  }
};

struct DotArguments : Edges {
  TensorView a, b;
  std::int64_t heads;
};

struct DotForward {
  using Arguments = DotArguments;
  static constexpr const char* kOp = "edge_dot";
  static constexpr auto kLike = &Arguments::a;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("a", &Arguments::a, with_even_rows),
                 tensor("b", &Arguments::b, with_even_rows)),
      edge_fields<Arguments, true>(), std::tuple(integer("heads", &Arguments::heads)));
  static std::string name() { return "edge_dot_forward"; }
  static std::string returns() { return "Tensor y"; }

  static auto run(const Context& context, const Arguments& a) {
    const std::int64_t cols = size_or_0(a.a, 1);
    check_value(a.heads > 0 && cols % a.heads == 0, kOp, ": heads is ", a.heads,
                ", expected a divisor of ", cols, " (the columns of a)");
    EdgeDotForward call{.a = a.a, .b = a.b, .edges = a, .y = {}};
    const Tensor y = matrix(call.y, a.a, edges_of(a, a.b), a.heads);
    edge_dot_forward(context, call);
    return std::tuple(y);
  }
};

struct DotBackwardArguments : DotArguments {
  TensorView dy;
  bool need_da;
  bool need_db;
};

struct DotBackward {
  using Arguments = DotBackwardArguments;
  static constexpr const char* kOp = "edge_dot";
  static constexpr auto kLike = &Arguments::dy;
  static constexpr auto kFields = std::tuple_cat(
      std::tuple(tensor("dy", &Arguments::dy, contiguous),
                 tensor("a", &Arguments::a, with_even_rows),
                 tensor("b", &Arguments::b, with_even_rows)),
      edge_fields<Arguments, true>(),
      std::tuple(flag("need_da", &Arguments::need_da), flag("need_db", &Arguments::need_db)));
  static std::string name() { return "edge_dot_backward"; }
  static std::string returns() { return "(Tensor da, Tensor db)"; }

  static auto run(const Context& context, const Arguments& a) {
    EdgeDotBackward call{.dy = a.dy, .a = a.a, .b = a.b, .edges = a};
    const auto gradient = [](bool wanted, TensorView& view, const TensorView& of) {
      return matrix_if(wanted, view, of, size_or_0(of, 0), size_or_0(of, 1), of.dtype);
    };
    const Tensor da = gradient(a.need_da, call.da, a.a);
    const Tensor db = gradient(a.need_db, call.db, a.b);
    edge_dot_backward(context, call);
    return std::tuple(da, db);
  }
};

using Ops = RawOps<GatherForward, GatherBackward, DotForward, DotBackward>;

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(transformer_kernels, m) { Ops::define(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CPU, m) { Ops::implement(m); }
STABLE_TORCH_LIBRARY_IMPL(transformer_kernels, CUDA, m) {
  if constexpr (kHasCuda) Ops::implement(m);
}

}  // namespace transformer_kernels::torch_ops
