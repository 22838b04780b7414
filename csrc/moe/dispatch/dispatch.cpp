// SPDX-License-Identifier: MIT
#include "transformer_kernels/moe/dispatch.h"

#include <algorithm>

#include "core/backends.h"
#include "core/overlap.h"
#include "moe/dispatch/problem.h"

namespace transformer_kernels {
namespace {

constexpr std::int64_t kMostAssignments = 2147483647;  // kernels count in 32 bits

constexpr Backends<SortProblem> kSort{.cpu = cpu::moe_sort,
                                      .cuda = kHasCuda ? cuda::moe_sort : nullptr};
constexpr Backends<SpreadProblem> kSpread{.cpu = cpu::moe_spread,
                                          .cuda = kHasCuda ? cuda::moe_spread : nullptr,
                                          .numbers = cpu::check_places};
constexpr Backends<CombineProblem> kCombine{.cpu = cpu::moe_combine,
                                            .cuda = kHasCuda ? cuda::moe_combine : nullptr,
                                            .numbers = cpu::check_places};

class Checker {
 public:
  Checker(const char* op, const Context& context) : op_(op), check_(op, context.device) {}

  // (T, K), without gaps.
  const std::int32_t* assigned(const char* name, const TensorView& view) const {
    check_.typed(name, view, DType::kInt32, "the dtype of indices");
    check_value(view.rank == 2, op_, ": ", name, " has ", view.rank, " dimensions, expected 2");
    check_value(view.sizes[1] >= 1 && view.sizes[1] <= kMostAssigned, op_, ": ", name, " has ",
                view.sizes[1], " columns, expected 1 to ", kMostAssigned);
    check_value(view.numel() <= kMostAssignments, op_, ": ", name, " has ", view.numel(),
                " elements, expected at most ", kMostAssignments);
    check_.packed(name, view, view.numel(), "its shape");
    return static_cast<const std::int32_t*>(view.data);
  }

  std::int32_t* numbers(const char* name, const TensorView& view, std::int64_t count,
                        const char* reason) const {
    check_.typed(name, view, DType::kInt32, "the dtype of indices");
    check_.packed(name, view, count, reason);
    return static_cast<std::int32_t*>(view.data);
  }

  // The first rows of a call, which say dtype and columns.
  void rows(DispatchProblem& p, const char* name, const TensorView& view) const {
    check_.floating(name, view);
    check_value(view.rank == 2, op_, ": ", name, " has ", view.rank, " dimensions, expected 2");
    p.dtype = view.dtype;
    p.cols = view.sizes[1];
  }

  Rows input(const DispatchProblem& p, const char* name, const TensorView& view,
             std::int64_t rows) const {
    shape(p, name, view, rows);
    return {view.data, checked_row_stride(op_, name, view)};
  }
  Rows output(const DispatchProblem& p, const char* name, const TensorView& view,
              std::int64_t rows) const {
    shape(p, name, view, rows);
    return {view.data, checked_output_stride(op_, name, view)};
  }

  void* weights(DispatchProblem& p, const char* name, const TensorView& view) const {
    if (!view.defined()) return nullptr;
    check_.floating(name, view);
    check_.typed_or_float32(name, view, p.dtype, "x");
    check_value(view.rank == 2 && view.sizes[0] == p.tokens && view.sizes[1] == p.assigned, op_,
                ": ", name, " has shape ", shape_of(view), ", expected (", p.tokens, ", ",
                p.assigned, ") (the shape of places)");
    check_.packed(name, view, p.assignments(), "the shape of places");
    p.weights_dtype = view.dtype;
    return view.data;
  }

  DispatchProblem start(const TensorView& places) const {
    DispatchProblem p{};
    p.op = op_;
    p.places = assigned("places", places);
    p.tokens = places.sizes[0];
    p.assigned = static_cast<int>(places.sizes[1]);
    return p;
  }

 private:
  void shape(const DispatchProblem& p, const char* name, const TensorView& view,
             std::int64_t rows) const {
    check_.typed(name, view, p.dtype, "the dtype of the rows");
    check_value(view.rank == 2 && view.sizes[0] == rows && view.sizes[1] == p.cols, op_, ": ", name,
                " has shape ", shape_of(view), ", expected (", rows, ", ", p.cols, ") (",
                rows == p.tokens ? "the rows" : "the elements", " of places)");
  }

  const char* op_;
  ArgumentChecker check_;
};

SortProblem check(const Context& context, const MoeSort& a) {
  constexpr const char* kOp = "moe_sort";
  const Checker check(kOp, context);
  SortProblem p{};
  p.op = kOp;
  p.indices = check.assigned("indices", a.indices);
  p.tokens = a.indices.sizes[0];
  p.assigned = static_cast<int>(a.indices.sizes[1]);
  check_value(a.experts >= 1 && a.experts <= kMostSortedExperts, kOp, ": num_experts is ",
              a.experts, ", expected 1 to ", kMostSortedExperts);
  p.experts = static_cast<int>(a.experts);
  check_value(a.capacity >= 0, kOp, ": capacity is ", a.capacity, ", expected 0 (none) or more");
  p.capacity = a.capacity == 0 ? kMostAssignments : std::min(a.capacity, kMostAssignments);
  p.offsets = check.numbers("offsets", a.offsets, a.experts + 1, "num_experts + 1");
  p.token_of = check.numbers("tokens", a.tokens, p.assignments(), "the elements of indices");
  p.places = check.numbers("places", a.places, p.assignments(), "the elements of indices");
  check_apart(kOp, {{"offsets", a.offsets}, {"tokens", a.tokens}, {"places", a.places}},
              {{"indices", a.indices}});
  return p;
}

// y[places] = weights * x
SpreadProblem spread_of(const Checker& check, const char* op, const char* x_name,
                        const TensorView& x, const TensorView& places, const char* y_name,
                        const TensorView& y) {
  SpreadProblem p{check.start(places)};
  check.rows(p, x_name, x);
  p.of_tokens = check.input(p, x_name, x, p.tokens);
  if (y.defined()) p.of_places = check.output(p, y_name, y, p.assignments());
  check_apart(op, {{y_name, y}}, {{x_name, x}, {"places", places}});
  return p;
}

// y = sum of weights * x[places]
CombineProblem combine_of(const Checker& check, const char* op, const char* x_name,
                          const TensorView& x, const TensorView& places, const char* y_name,
                          const TensorView& y) {
  CombineProblem p{check.start(places)};
  check.rows(p, x_name, x);
  p.of_places = check.input(p, x_name, x, p.assignments());
  p.of_tokens = check.output(p, y_name, y, p.tokens);
  check_apart(op, {{y_name, y}}, {{x_name, x}, {"places", places}});
  return p;
}

std::string described(const char* movement, const DispatchProblem& p) {
  return concat(movement, " ", name_of(p.dtype), " ", p.tokens, "x", p.assigned, " rows of ",
                p.cols, p.weights != nullptr ? " weighted" : "",
                p.dweights != nullptr ? " + dweights" : "");
}

template <class Problem>
void run(const char* op, const Backends<Problem>& backends, const Context& context,
         const Problem& problem) {
  if (problem.tokens > 0 && (problem.cols > 0 || problem.dweights != nullptr)) {
    run_on(op, backends, context, problem);
  }
}

}  // namespace

std::string describe(const SortProblem& p) {
  return concat(p.tokens, "x", p.assigned, " to ", p.experts, " experts");
}
std::string describe(const SpreadProblem& p) { return described("spread", p); }
std::string describe(const CombineProblem& p) { return described("combine", p); }

void moe_sort(const Context& context, const MoeSort& arguments) {
  run_on("moe_sort", kSort, context, check(context, arguments));
}

void moe_permute_forward(const Context& context, const MoePermuteForward& a) {
  constexpr const char* kOp = "moe_permute";
  check_value(a.y.defined(), kOp, ": y is missing");
  run(kOp, kSpread, context, spread_of(Checker(kOp, context), kOp, "x", a.x, a.places, "y", a.y));
}

void moe_permute_backward(const Context& context, const MoePermuteBackward& a) {
  constexpr const char* kOp = "moe_permute";
  run(kOp, kCombine, context,
      combine_of(Checker(kOp, context), kOp, "dy", a.dy, a.places, "dx", a.dx));
}

void moe_unpermute_forward(const Context& context, const MoeUnpermuteForward& a) {
  constexpr const char* kOp = "moe_unpermute";
  const Checker check(kOp, context);
  CombineProblem p = combine_of(check, kOp, "x", a.x, a.places, "y", a.y);
  p.weights = check.weights(p, "weights", a.weights);
  check_apart(kOp, Operand{"y", a.y}, Operand{"weights", a.weights});
  run(kOp, kCombine, context, p);
}

void moe_unpermute_backward(const Context& context, const MoeUnpermuteBackward& a) {
  constexpr const char* kOp = "moe_unpermute";
  const Checker check(kOp, context);
  SpreadProblem p = spread_of(check, kOp, "dy", a.dy, a.places, "dx", a.dx);
  p.weights = check.weights(p, "weights", a.weights);
  if (a.dweights.defined()) {
    check_value(a.weights.defined(), kOp, ": weights is missing, expected it beside dweights");
    check_value(a.dweights.dtype == a.weights.dtype, kOp, ": dweights is ",
                name_of(a.dweights.dtype), ", expected the dtype of weights");
    p.dweights = check.weights(p, "dweights", a.dweights);
    p.weighted = check.input(p, "x", a.x, p.assignments());
    check_apart(kOp, {{"dweights", a.dweights}, {"dx", a.dx}},
                {{"dy", a.dy}, {"x", a.x}, {"weights", a.weights}, {"places", a.places}});
  }
  if (a.dx.defined() || a.dweights.defined()) run(kOp, kSpread, context, p);
}

}  // namespace transformer_kernels
