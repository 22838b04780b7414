// SPDX-License-Identifier: MIT
// The passes call ops of groups of rows one after the other, on every device.
#include "transformer_kernels/moe/experts.h"

#include "core/backends.h"
#include "core/dispatch.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "moe/experts/checks.h"
#include "pointwise/problem.h"
#include "transformer_kernels/linear/grouped_linear.h"
#include "transformer_kernels/moe/dispatch.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "moe_experts";

// Rows for the time of a call, which begin where the fast engines of products can read them.
class ScratchRows {
 public:
  ScratchRows(const Context& context, DType dtype, std::int64_t rows, std::int64_t cols)
      : stride_(rounded_up(cols, 16 / size_of(dtype))),
        memory_(kOp, context, rows * stride_ * size_of(dtype)),
        view_(TensorView::contiguous(memory_.data(), dtype, context.device, {rows, cols})) {
    view_.strides[0] = stride_;
  }

  const TensorView& get() const { return view_; }
  // The numbers of a single row.
  TensorView numbers() const {
    return TensorView::contiguous(view_.data, view_.dtype, view_.device, {view_.sizes[1]});
  }

 private:
  std::int64_t stride_;
  Scratch memory_;
  TensorView view_;
};

// Numbers without gaps, one for each place.
TensorView as_column(TensorView view, std::int64_t count) {
  view.rank = 2;
  view.sizes = {count, 1};
  view.strides = {1, 1};
  return view;
}

TensorView columns_of(TensorView view, std::int64_t begin, std::int64_t count) {
  const int last = view.rank - 1;
  if (view.numel() > 0) {
    view.data = static_cast<std::byte*>(view.data) +
                begin * view.strides[last] * static_cast<std::int64_t>(size_of(view.dtype));
  }
  view.sizes[last] = count;
  return view;
}

template <class Arguments>
std::int64_t places_of(const Arguments& a) {
  return a.places.numel();
}
template <class Arguments>
std::int64_t hidden_of(const Arguments& a) {
  return a.weight.sizes[1];
}

// ---- the forward pass ---------------------------------------------------------------------------

// The activation of the kept products.
template <class Arguments>
void activate(const Context& context, const Arguments& a, const TensorView& gate,
              const TensorView& h) {
  pointwise_forward(context, {.op = a.activation, .x = gate, .up = a.up, .y = h});
}

void run_first_layer(const Context& context, const MoeExpertsForward& a, const TensorView& h) {
  if (is_gated(a.activation)) {
    return grouped_gated_linear_forward(context, {.x = a.x,
                                                  .weight = a.weight,
                                                  .up_weight = a.up_weight,
                                                  .bias = a.bias,
                                                  .up_bias = a.up_bias,
                                                  .offsets = a.offsets,
                                                  .x_rows = a.tokens,
                                                  .activation = a.activation,
                                                  .gate = a.gate,
                                                  .up = a.up,
                                                  .y = h});
  }
  const TensorView gate = a.gate.defined() ? a.gate : h;  // the activation may be written over it
  grouped_linear_forward(context, {.x = a.x,
                                   .weight = a.weight,
                                   .bias = a.bias,
                                   .offsets = a.offsets,
                                   .x_rows = a.tokens,
                                   .y = gate});
  activate(context, a, gate, h);
}

template <class Arguments>
void run_last_layer(const Context& context, const Arguments& a, const TensorView& h,
                    const TensorView& rows) {
  grouped_linear_forward(
      context,
      {.x = h, .weight = a.down_weight, .bias = a.down_bias, .offsets = a.offsets, .y = rows});
}

void run_forward(const Context& context, const MoeExpertsForward& a) {
  const ScratchRows rows(context, a.x.dtype, places_of(a), a.y.sizes[1]);
  {
    const ScratchRows h(context, a.x.dtype, places_of(a), hidden_of(a));
    run_first_layer(context, a, h.get());
    run_last_layer(context, a, h.get(), rows.get());
  }
  moe_unpermute_forward(context,
                        {.x = rows.get(), .places = a.places, .weights = a.weights, .y = a.y});
}

// ---- the backward pass --------------------------------------------------------------------------

// A tensor that packs gate and up, of which `up` directly follows `gate`.
bool packs(const TensorView& gate, const TensorView& up, int dimension) {
  if (!gate.defined() || !up.defined()) return gate.defined() == up.defined();
  const std::int64_t step = gate.sizes[dimension] * gate.strides[dimension];
  const auto address = [](const TensorView& view) {
    return reinterpret_cast<std::intptr_t>(view.data);
  };
  return address(gate) + step * size_of(gate.dtype) == address(up) && gate.strides == up.strides &&
         gate.dtype == up.dtype;
}
TensorView packed(TensorView gate, int dimension) {
  if (gate.defined()) gate.sizes[dimension] *= 2;
  return gate;
}

bool needs_first_layer(const MoeExpertsBackward& a) {
  return a.dx.defined() || a.dweight.defined() || a.dup_weight.defined() || a.dbias.defined() ||
         a.dup_bias.defined();
}

// The gradient of the router's weights, by the last layer's result.
void run_router_gradient(const Context& context, const MoeExpertsBackward& a, const TensorView& h) {
  const ScratchRows rows(context, a.x.dtype, places_of(a), a.dy.sizes[1]);
  activate(context, a, a.gate, h);
  run_last_layer(context, a, h, rows.get());
  moe_unpermute_backward(context, {.dy = a.dy,
                                   .x = rows.get(),
                                   .places = a.places,
                                   .weights = a.weights,
                                   .dweights = a.dweights});
}

// Gradients of both products of a gate, and of the last layer, whose row factor h then includes.
void through_gate(const Context& context, const MoeExpertsBackward& a, const TensorView& factors,
                  const TensorView& h, const TensorView& dgate, const TensorView& dup) {
  const std::int64_t count = places_of(a);
  const bool sums_columns = a.dweights.defined() && !a.down_bias.defined();
  const ScratchRows dfactors(context, factors.dtype, 1, sums_columns ? count : 0);
  if (a.dweights.defined() && !sums_columns) run_router_gradient(context, a, h);
  grouped_linear_dgated(context, {.dy = a.dy,
                                  .weight = a.down_weight,
                                  .gate = a.gate,
                                  .up = a.up,
                                  .offsets = a.offsets,
                                  .dy_rows = a.tokens,
                                  .factors = factors,
                                  .activation = a.activation,
                                  .dgate = dgate,
                                  .dup = dup,
                                  .h = a.ddown_weight.defined() ? h : TensorView{},
                                  .dfactors = sums_columns ? dfactors.numbers() : TensorView{}});
  if (sums_columns) {
    moe_unpermute_forward(context, {.x = as_column(dfactors.numbers(), count),
                                    .places = as_column(a.places, count),
                                    .y = as_column(a.dweights, count)});
  }
  if (a.ddown_weight.defined()) {
    grouped_linear_backward(
        context,
        {.dy = a.dy, .x = h, .offsets = a.offsets, .dy_rows = a.tokens, .dweight = a.ddown_weight});
  }
  if (a.ddown_bias.defined()) {
    grouped_linear_backward(context, {.dy = a.dy,
                                      .offsets = a.offsets,
                                      .dy_rows = a.tokens,
                                      .factors = factors,
                                      .dbias = a.ddown_bias});
  }
}

// The gradient of the product before the activation, and those of the last layer.
void through_activation(const Context& context, const MoeExpertsBackward& a,
                        const TensorView& factors, const TensorView& h, const TensorView& dz) {
  if (a.dweights.defined()) {
    run_router_gradient(context, a, h);
  } else {
    activate(context, a, a.gate, h);
  }
  grouped_linear_backward(context, {.dy = a.dy,
                                    .x = h,
                                    .weight = a.down_weight,
                                    .offsets = a.offsets,
                                    .dy_rows = a.tokens,
                                    .factors = factors,
                                    .dx = dz,
                                    .dweight = a.ddown_weight,
                                    .dbias = a.ddown_bias});
  pointwise_backward(context, {.op = a.activation, .dy = dz, .x = a.gate, .dx = dz});
}

void through_first_layer(const Context& context, const MoeExpertsBackward& a,
                         const TensorView& dgate, const TensorView& dup) {
  const ScratchRows rows(context, a.x.dtype, a.dx.defined() ? places_of(a) : 0, a.x.sizes[1]);
  GroupedLinearBackward layer{.dy = dgate,
                              .x = a.x,
                              .weight = a.weight,
                              .offsets = a.offsets,
                              .x_rows = a.tokens,
                              .dx = a.dx.defined() ? rows.get() : TensorView{},
                              .dweight = a.dweight,
                              .dbias = a.dbias};
  const bool in_one = dup.defined() && packs(a.weight, a.up_weight, 1) &&
                      packs(a.dweight, a.dup_weight, 1) && !a.dbias.defined() &&
                      !a.dup_bias.defined();
  if (in_one) {
    layer.dy = packed(dgate, 1);
    layer.weight = packed(a.weight, 1);
    layer.dweight = packed(a.dweight, 1);
  }
  grouped_linear_backward(context, layer);
  if (dup.defined() && !in_one) {
    layer.dy = dup;
    layer.weight = a.up_weight;
    layer.dweight = a.dup_weight;
    layer.dbias = a.dup_bias;
    layer.accumulate_dx = true;
    grouped_linear_backward(context, layer);
  }
  if (!a.dx.defined()) return;
  moe_permute_backward(context, {.dy = rows.get(), .places = a.places, .dx = a.dx});
}

void run_backward(const Context& context, const MoeExpertsBackward& a) {
  const std::int64_t count = places_of(a), hidden = hidden_of(a);
  const bool gated = is_gated(a.activation);
  const ScratchRows factor_memory(context, a.weights.dtype, 1, count);
  const TensorView factors = factor_memory.numbers();
  moe_permute_forward(context, {.x = as_column(a.weights, count),
                                .places = as_column(a.places, count),
                                .y = as_column(factors, count)});
  const ScratchRows dz(context, a.x.dtype, count, gated ? 2 * hidden : hidden);
  const TensorView dgate = columns_of(dz.get(), 0, hidden);
  const TensorView dup = gated ? columns_of(dz.get(), hidden, hidden) : TensorView{};
  {
    const ScratchRows h(context, a.x.dtype, count, hidden);
    if (gated) {
      through_gate(context, a, factors, h.get(), dgate, dup);
    } else {
      through_activation(context, a, factors, h.get(), dgate);
    }
  }
  if (needs_first_layer(a)) through_first_layer(context, a, dgate, dup);
}

constexpr Backends<MoeExpertsForward> kForward{.cpu = run_forward,
                                               .cuda = kHasCuda ? run_forward : nullptr};
constexpr Backends<MoeExpertsBackward> kBackward{.cpu = run_backward,
                                                 .cuda = kHasCuda ? run_backward : nullptr};

}  // namespace

void moe_experts_forward(const Context& context, const MoeExpertsForward& arguments) {
  check(kOp, context, arguments);
  run_on(kOp, kForward, context, arguments);
}

void moe_experts_backward(const Context& context, const MoeExpertsBackward& arguments) {
  check(kOp, context, arguments);
  run_on(kOp, kBackward, context, arguments);
}

}  // namespace transformer_kernels
