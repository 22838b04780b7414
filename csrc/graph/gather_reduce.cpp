// SPDX-License-Identifier: MIT
#include "transformer_kernels/graph/gather_reduce.h"

#include <optional>

#include "core/backends.h"
#include "core/overlap.h"
#include "graph/check.h"

namespace transformer_kernels {
namespace {

constexpr Backends<ReduceProblem> kReduce{.cpu = cpu::reduce_segments,
                                          .cuda = kHasCuda ? cuda::reduce_segments : nullptr,
                                          .numbers = cpu::check_numbers};
constexpr Backends<EdgeProblem> kEdges{.cpu = cpu::run_edges,
                                       .cuda = kHasCuda ? cuda::run_edges : nullptr,
                                       .numbers = cpu::check_numbers};

constexpr const char* kGather = "gather_reduce";
constexpr const char* kDot = "edge_dot";
constexpr const char* kSegments = "the segments of offsets";

void run(const Context& context, ReduceProblem problem) {
  if (problem.segments.count == 0 || problem.cols == 0) return;
  const bool by_number = problem.weight != nullptr || problem.chosen.present || problem.largest;
  if (problem.segments.indices.present && !by_number) problem.segments.order = {};
  run_on(problem.op, kReduce, context, problem);
}

void run(const Context& context, const EdgeProblem& problem) {
  if (problem.segments.edges == 0 || (problem.spread && problem.cols == 0)) return;
  run_on(problem.op, kEdges, context, problem);
}

// The edges that elements of (N, C) have chosen.
GraphIndices check_chosen(const GraphChecker& check, const TensorView& chosen,
                          std::int64_t segments, std::int64_t cols) {
  check.arguments().indices("chosen", chosen);
  check.arguments().packed("chosen", chosen, segments * cols, "those of y");
  return graph_indices(chosen);
}

struct Weights {
  std::int64_t heads = 1;
  const void* data = nullptr;
};
Weights check_weight(const GraphChecker& check, const TensorView& weight, const Segments& segments,
                     const char* like_name, const TensorView& like) {
  if (!weight.defined()) return {};
  return {check.weight("weight", weight, segments, like_name, like), weight.data};
}

// The gradient of x: a sum by the transpose, or, where each edge has a row of x, its segment's dy.
void gradient_of_x(const Context& context, const GraphChecker& check, const GatherReduceBackward& a,
                   const Segments& segments, const Weights& weights, GraphIndices chosen) {
  check.matrix_like("dx", a.dx, "dy", a.dy);
  check.sized("dx", a.dx, segments.across_rows, "those of x", a.dy.sizes[1], "those of dy");
  const std::int64_t cols = a.dy.sizes[1];
  const bool mean = a.reduce == Reduce::kMean;
  const Rows dy = check.input("dy", a.dy);
  const Rows dx = check.output("dx", a.dx);
  if (!segments.indices.present) {
    return run(context, EdgeProblem{.op = kGather,
                                    .dtype = a.dy.dtype,
                                    .spread = true,
                                    .mean = mean,
                                    .segments = segments,
                                    .cols = cols,
                                    .heads = weights.heads,
                                    .a = dy,
                                    .b = {},
                                    .weight = weights.data,
                                    .chosen = chosen,
                                    .y = dx});
  }
  run(context, ReduceProblem{.op = kGather,
                             .dtype = a.dy.dtype,
                             .largest = false,
                             .mean = false,
                             .segments = check.transpose(a.edges, segments, "x"),
                             .cols = cols,
                             .heads = weights.heads,
                             .x = dy,
                             .weight = weights.data,
                             .degrees = mean ? segments.offsets : GraphIndices{},
                             .chosen = chosen,
                             .y = dx});
}

// Both operands of edge_dot, and the edges between their rows.
Segments check_factors(const GraphChecker& check, const TensorView& a, const TensorView& b,
                       const Edges& edges) {
  check.matrix("a", a);
  check.matrix_like("b", b, "a", a);
  const Segments segments = check.segments(edges, "b", b);
  check.sized("a", a, segments.count, kSegments, a.sizes[1], "its own");
  check.sized("b", b, segments.across_rows, "its own", a.sizes[1], "the last dimension of a");
  return segments;
}

}  // namespace

std::string describe(const ReduceProblem& p) {
  return concat(p.largest ? "largest " : "sum ", name_of(p.dtype), " ", p.segments.edges, "x",
                p.cols, " to ", p.segments.count, " segments");
}

std::string describe(const EdgeProblem& p) {
  return concat(p.spread ? "spread " : "products ", name_of(p.dtype), " ", p.segments.edges, "x",
                p.cols, " of ", p.segments.count, " segments");
}

void gather_reduce_forward(const Context& context, const GatherReduceForward& a) {
  const GraphChecker check(kGather, context.device);
  check.matrix("x", a.x);
  const Segments segments = check.segments(a.edges, "x", a.x);
  const Weights weights = check_weight(check, a.weight, segments, "x", a.x);
  const std::int64_t cols = a.x.sizes[1];
  check.matrix_like("y", a.y, "x", a.x);
  check.sized("y", a.y, segments.count, kSegments, cols, "those of x");
  ReduceProblem p{.op = kGather,
                  .dtype = a.x.dtype,
                  .largest = a.reduce == Reduce::kMax,
                  .mean = a.reduce == Reduce::kMean,
                  .segments = segments,
                  .cols = cols,
                  .heads = weights.heads,
                  .x = check.input("x", a.x),
                  .weight = weights.data,
                  .y = check.output("y", a.y)};
  if (p.largest) {
    check_chosen(check, a.chosen, segments.count, cols);
    p.new_chosen = a.chosen.data;
    p.new_chosen_wide = a.chosen.dtype == DType::kInt64;
    check_apart(kGather, {{"chosen", a.chosen}, {"y", a.y}}, {{"x", a.x}, {"weight", a.weight}});
  }
  check_apart(kGather, {{"y", a.y}}, {{"x", a.x}, {"weight", a.weight}});
  run(context, p);
}

void gather_reduce_backward(const Context& context, const GatherReduceBackward& a) {
  const GraphChecker check(kGather, context.device);
  check.matrix("dy", a.dy);
  const bool has_x = a.x.defined();
  check_value(has_x || !a.dweight.defined(), kGather,
              ": x is missing, expected it for the gradient of weight");
  if (has_x) check.matrix_like("x", a.x, "dy", a.dy);
  check_value(has_x || a.dx.defined(), kGather, ": dx is missing, expected it or dweight");
  const Segments segments = check.segments(a.edges, "x", has_x ? a.x : a.dx);
  const std::int64_t cols = a.dy.sizes[1];
  check.sized("dy", a.dy, segments.count, kSegments, cols, "its own");
  const Weights weights = check_weight(check, a.weight, segments, "dy", a.dy);
  const GraphIndices chosen = a.reduce == Reduce::kMax
                                  ? check_chosen(check, a.chosen, segments.count, cols)
                                  : GraphIndices{};
  std::optional<EdgeProblem> of_weight;  // checked before anything is written
  if (a.dweight.defined()) {
    check.sized("x", a.x, segments.across_rows, "its own", cols, "those of dy");
    const std::int64_t heads = check.weight("dweight", a.dweight, segments, "dy", a.dy);
    of_weight = EdgeProblem{.op = kGather,
                            .dtype = a.dy.dtype,
                            .spread = false,
                            .mean = a.reduce == Reduce::kMean,
                            .segments = segments,
                            .cols = cols,
                            .heads = heads,
                            .a = check.input("dy", a.dy),
                            .b = check.input("x", a.x),
                            .weight = nullptr,
                            .chosen = chosen,
                            .y = check.output("dweight", a.dweight)};
  }
  check_apart(kGather, {{"dx", a.dx}, {"dweight", a.dweight}},
              {{"dy", a.dy}, {"x", a.x}, {"weight", a.weight}, {"chosen", a.chosen}});
  if (a.dx.defined()) gradient_of_x(context, check, a, segments, weights, chosen);
  if (of_weight) run(context, *of_weight);
}

void edge_dot_forward(const Context& context, const EdgeDotForward& e) {
  const GraphChecker check(kDot, context.device);
  const Segments segments = check_factors(check, e.a, e.b, e.edges);
  const std::int64_t heads = check.weight("y", e.y, segments, "a", e.a);
  check_apart(kDot, {{"y", e.y}}, {{"a", e.a}, {"b", e.b}});
  run(context, EdgeProblem{.op = kDot,
                           .dtype = e.a.dtype,
                           .spread = false,
                           .mean = false,
                           .segments = segments,
                           .cols = e.a.sizes[1],
                           .heads = heads,
                           .a = check.input("a", e.a),
                           .b = check.input("b", e.b),
                           .weight = nullptr,
                           .y = check.output("y", e.y)});
}

void edge_dot_backward(const Context& context, const EdgeDotBackward& e) {
  const GraphChecker check(kDot, context.device);
  const Segments segments = check_factors(check, e.a, e.b, e.edges);
  const std::int64_t heads = check.weight("dy", e.dy, segments, "a", e.a);
  const auto sum = [&](const char* name, const TensorView& result, const Segments& by,
                       const char* of_name, const TensorView& of) {
    check.matrix_like(name, result, "a", e.a);
    check.sized(name, result, by.count, "one for each segment", e.a.sizes[1],
                "the last dimension of a");
    return ReduceProblem{.op = kDot,
                         .dtype = e.a.dtype,
                         .largest = false,
                         .mean = false,
                         .segments = by,
                         .cols = e.a.sizes[1],
                         .heads = heads,
                         .x = check.input(of_name, of),
                         .weight = e.dy.data,
                         .y = check.output(name, result)};
  };
  std::optional<ReduceProblem> of_a, of_b;  // both are checked before anything is written
  if (e.da.defined()) of_a = sum("da", e.da, segments, "b", e.b);
  if (e.db.defined()) of_b = sum("db", e.db, check.transpose(e.edges, segments, "b"), "a", e.a);
  check_apart(kDot, {{"da", e.da}, {"db", e.db}}, {{"dy", e.dy}, {"a", e.a}, {"b", e.b}});
  if (of_a) run(context, *of_a);
  if (of_b) run(context, *of_b);
}

}  // namespace transformer_kernels
