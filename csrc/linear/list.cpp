// SPDX-License-Identifier: MIT
#include "transformer_kernels/linear/list.h"

#include <algorithm>
#include <utility>

#include "core/overlap.h"
#include "transformer_kernels/linear/linear.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "linear_list";

// The entry of an optional list.
TensorView entry(std::span<const TensorView> list, std::size_t i) {
  return list.empty() ? TensorView{} : list[i];
}

void check_count(const char* name, std::span<const TensorView> list, std::size_t count) {
  check_value(list.size() == count, kOp, ": ", name, " has ", list.size(), " entries, expected ",
              count, " (as many as weights)");
}
void check_optional_count(const char* name, std::span<const TensorView> list, std::size_t count) {
  if (!list.empty()) check_count(name, list, count);
}

struct Named {
  const char* name;
  std::span<const TensorView> list;
};

// Outputs of all layers overlap neither inputs of any layer nor each other.
void check_lists_apart(std::initializer_list<Named> outputs, std::initializer_list<Named> inputs) {
  const auto check_all = [](const Named& output, std::size_t i, const Named& other,
                            std::size_t count) {
    for (std::size_t j = 0; j < count; ++j) {
      check_apart(kOp, {output.name, output.list[i]}, {other.name, other.list[j]});
    }
  };
  for (const Named* output = outputs.begin(); output != outputs.end(); ++output) {
    for (std::size_t i = 0; i < output->list.size(); ++i) {
      for (const Named& input : inputs) check_all(*output, i, input, input.list.size());
      for (const Named* other = outputs.begin(); other != output; ++other) {
        check_all(*output, i, *other, other->list.size());
      }
      check_all(*output, i, *output, i);
    }
  }
}

// Calls `layer` with each number below `count`, first with a context that only checks: nothing is
// written where an argument of any layer is wrong.
template <class Layer>
void check_and_run(const Context& context, std::size_t count, Layer&& layer) {
  Context checking = context;
  checking.checks_only = true;
  for (std::size_t i = 0; i < count; ++i) layer(checking, i);
  if (context.checks_only) return;
  for (std::size_t i = 0; i < count; ++i) layer(context, i);
}

// The pass of a layer whose dy arrives; dx is what the layers before it have summed.
LinearBackward layer_of(const LinearListBackward& a, std::size_t i, bool adds_to_dx) {
  return {.dy = a.dys[i],
          .x = a.x,
          .weight = a.weights[i],
          .dx = a.dx,
          .dweight = entry(a.dweights, i),
          .dbias = entry(a.dbiases, i),
          .accumulate_dx = adds_to_dx,
          .accumulate_dweight = a.accumulate_dweights,
          .accumulate_dbias = a.accumulate_dbiases};
}

// That of a layer whose dy is absent: sums over no rows.
LinearBackward layer_without_rows(const LinearListBackward& a, std::size_t i) {
  const std::int64_t cols = a.weights[i].sizes[0], terms = a.weights[i].sizes[1];
  return {.dy = TensorView::contiguous(nullptr, a.x.dtype, a.x.device, {0, cols}),
          .x = TensorView::contiguous(nullptr, a.x.dtype, a.x.device, {0, terms}),
          .weight = a.weights[i],
          .dweight = entry(a.dweights, i),
          .dbias = entry(a.dbiases, i),
          .accumulate_dweight = a.accumulate_dweights,
          .accumulate_dbias = a.accumulate_dbiases};
}

// That of a layer without columns, which stands in where no dy arrives: dx is a sum of nothing.
LinearBackward layer_without_columns(const LinearListBackward& a) {
  TensorView dy = a.x;
  std::int64_t terms = 0;
  if (dy.rank > 0) std::swap(dy.sizes[dy.rank - 1], terms);
  return {.dy = dy,
          .x = a.x,
          .weight = TensorView::contiguous(nullptr, a.x.dtype, a.x.device, {0, terms}),
          .dx = a.dx,
          .accumulate_dx = a.accumulate_dx};
}

}  // namespace

void linear_list_forward(const Context& context, const LinearListForward& a) {
  const std::size_t count = a.weights.size();
  check_count("ys", a.ys, count);
  check_optional_count("biases", a.biases, count);
  check_lists_apart({{"ys", a.ys}},
                    {{"x", {&a.x, 1}}, {"weights", a.weights}, {"biases", a.biases}});
  check_and_run(context, count, [&](const Context& on, std::size_t i) {
    linear_forward(on,
                   {.x = a.x, .weight = a.weights[i], .bias = entry(a.biases, i), .y = a.ys[i]});
  });
}

void linear_list_backward(const Context& context, const LinearListBackward& a) {
  const std::size_t count = a.weights.size();
  check_count("dys", a.dys, count);
  check_optional_count("dweights", a.dweights, count);
  check_optional_count("dbiases", a.dbiases, count);
  for (const TensorView& weight : a.weights) {
    check_value(weight.rank == 2, kOp, ": weights has an entry of ", weight.rank,
                " dimensions, expected 2");
  }
  check_lists_apart({{"dx", {&a.dx, 1}}, {"dweights", a.dweights}, {"dbiases", a.dbiases}},
                    {{"dys", a.dys}, {"x", {&a.x, 1}}, {"weights", a.weights}});
  const auto is_present = [](const TensorView& dy) { return dy.defined(); };
  const std::size_t first = std::ranges::find_if(a.dys, is_present) - a.dys.begin();
  const std::size_t layers = first == count && a.dx.defined() ? count + 1 : count;
  check_and_run(context, layers, [&](const Context& on, std::size_t i) {
    linear_backward(on, i == count           ? layer_without_columns(a)
                        : a.dys[i].defined() ? layer_of(a, i, a.accumulate_dx || i != first)
                                             : layer_without_rows(a, i));
  });
}

}  // namespace transformer_kernels
