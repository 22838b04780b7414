// SPDX-License-Identifier: MIT
#include "transformer_kernels/graph/segment_softmax.h"

#include "core/backends.h"
#include "core/overlap.h"
#include "graph/check.h"

namespace transformer_kernels {
namespace {

constexpr Backends<SegmentSoftmaxProblem> kBackends{
    .cpu = cpu::segment_softmax,
    .cuda = kHasCuda ? cuda::segment_softmax : nullptr,
    .numbers = cpu::check_numbers};
constexpr const char* kOp = "segment_softmax";

SegmentSoftmaxProblem check(const GraphChecker& check, const Edges& edges, const char* x_name,
                            const TensorView& x, const char* y_name, const TensorView& y) {
  check.matrix(x_name, x);
  const Segments segments =
      check.segments({.offsets = edges.offsets, .order = edges.order}, x_name, x);
  check.matrix_like(y_name, y, x_name, x);
  check.arguments().same_shape(y_name, y, x_name, x);
  check_apart(kOp, {{y_name, y}},
              {{x_name, x}, {"offsets", edges.offsets}, {"order", edges.order}});
  return {.op = kOp,
          .dtype = x.dtype,
          .segments = segments,
          .cols = x.sizes[1],
          .x = check.input(x_name, x),
          .dy = {},
          .y = check.output(y_name, y)};
}

void run(const Context& context, const SegmentSoftmaxProblem& problem) {
  if (problem.segments.edges == 0 || problem.cols == 0) return;
  run_on(kOp, kBackends, context, problem);
}

}  // namespace

std::string describe(const SegmentSoftmaxProblem& p) {
  return concat(p.dy.data == nullptr ? "forward " : "backward ", name_of(p.dtype), " ",
                p.segments.edges, "x", p.cols, " in ", p.segments.count, " segments");
}

void segment_softmax_forward(const Context& context, const SegmentSoftmaxForward& a) {
  run(context, check(GraphChecker(kOp, context.device), a.edges, "x", a.x, "y", a.y));
}

void segment_softmax_backward(const Context& context, const SegmentSoftmaxBackward& a) {
  const GraphChecker checker(kOp, context.device);
  checker.matrix("dy", a.dy);
  SegmentSoftmaxProblem p = check(checker, a.edges, "y", a.y, "dx", a.dx);
  checker.matrix_like("dy", a.dy, "y", a.y);
  checker.arguments().same_shape("dy", a.dy, "y", a.y);
  check_apart(kOp, {"dx", a.dx}, {"dy", a.dy});
  p.dy = checker.input("dy", a.dy);
  run(context, p);
}

}  // namespace transformer_kernels
