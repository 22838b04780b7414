// SPDX-License-Identifier: MIT
// The passes call the ops of linear layers and activations one after the other, on every device.
#include "transformer_kernels/mlp/mlp.h"

#include <algorithm>

#include "core/backends.h"
#include "core/rounding.h"
#include "core/rows.h"
#include "core/scratch.h"
#include "mlp/checks.h"
#include "mlp/parts.h"
#include "pointwise/problem.h"
#include "transformer_kernels/linear/gated_linear.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "mlp";
constexpr const char* kGatedOp = "gated_mlp";

template <class Arguments>
const char* name_of_op(const Arguments& a) {
  return is_gated(a.activation) ? kGatedOp : kOp;
}

// Hidden features of each row of x for the time of a call: `most` tensors of `cols` columns each.
class HiddenRows {
 public:
  HiddenRows(const char* op, const Context& context, const TensorView& x, std::int64_t cols,
             int most)
      : like_(like(x, cols)),
        bytes_(rounded_up(like_.numel() * size_of(x.dtype), kAlignment)),
        memory_(op, context, most * bytes_) {}

  // One that none before it has since the last reset(), with this many of the columns.
  TensorView next(std::int64_t cols) {
    TensorView view = like_;
    view.data = static_cast<std::byte*>(memory_.data()) + bytes_ * used_++;
    view.sizes[view.rank - 1] = cols;
    return view;
  }
  void reset() { used_ = 0; }

 private:
  static constexpr std::int64_t kAlignment = 256;

  // Rows begin where the fast engines of products can read them.
  static TensorView like(const TensorView& x, std::int64_t cols) {
    TensorView view = x;
    std::int64_t stride = 1;
    for (int i = x.rank - 1; i >= 0; --i) {
      if (i == x.rank - 1) view.sizes[i] = rounded_up(cols, 16 / size_of(x.dtype));
      view.strides[i] = stride;
      stride *= view.sizes[i];
    }
    return view;
  }

  TensorView like_;
  std::int64_t bytes_;
  Scratch memory_;
  int used_ = 0;
};

// ---- the forward pass ---------------------------------------------------------------------------

// The first layer and its activation. z and up are kept where these are defined.
template <class Arguments>
void run_first_layer(const Context& context, const Arguments& a, const TensorView& h) {
  if (is_gated(a.activation)) {
    gated_linear_forward(context, {.x = a.x,
                                   .weight = a.weight,
                                   .up_weight = a.up_weight,
                                   .bias = a.bias,
                                   .up_bias = a.up_bias,
                                   .activation = a.activation,
                                   .gate = a.z,
                                   .up = a.up,
                                   .y = h});
  } else {
    linear_forward(context, {.x = a.x,
                             .weight = a.weight,
                             .bias = a.bias,
                             .activation = a.activation,
                             .z = a.z,
                             .y = h});
  }
}

void run_forward(const Context& context, const MlpForward& a) {
  if (!a.down_weight.defined()) return run_first_layer(context, a, a.y);
  const std::int64_t hidden = a.weight.sizes[0];
  HiddenRows memory(name_of_op(a), context, a.x, hidden, a.h.defined() ? 0 : 1);
  const TensorView h = a.h.defined() ? a.h : memory.next(hidden);
  run_first_layer(context, a, h);
  linear_forward(context, {.x = h, .weight = a.down_weight, .bias = a.down_bias, .y = a.y});
}

// ---- the backward pass --------------------------------------------------------------------------

TensorView part_of(TensorView view, int dimension, std::int64_t begin, std::int64_t count) {
  if (!view.defined()) return view;
  view.data = static_cast<std::byte*>(view.data) +
              begin * view.strides[dimension] * static_cast<std::int64_t>(size_of(view.dtype));
  view.sizes[dimension] = count;
  return view;
}

// The pass of some of the hidden features.
MlpBackward part_of(MlpBackward a, std::int64_t begin, std::int64_t count) {
  if (!a.down_weight.defined()) a.dy = part_of(a.dy, a.dy.rank - 1, begin, count);
  for (TensorView* view : {&a.weight, &a.up_weight, &a.bias, &a.up_bias, &a.dweight, &a.dup_weight,
                           &a.dbias, &a.dup_bias}) {
    *view = part_of(*view, 0, begin, count);
  }
  for (TensorView* view : {&a.down_weight, &a.z, &a.up, &a.h, &a.ddown_weight}) {
    *view = part_of(*view, view->rank - 1, begin, count);
  }
  return a;
}

bool wants_dz(const MlpBackward& a) {
  return a.dx.defined() || a.dweight.defined() || a.dup_weight.defined() || a.dbias.defined() ||
         a.dup_bias.defined();
}
bool wants_h(const MlpBackward& a) { return a.ddown_weight.defined() && !a.h.defined(); }

// dz, and dup of a gate, lie in memory of their own unless z may be overwritten.
bool has_dz_over_z(const MlpBackward& a) { return a.overwrite_z || !a.z.defined(); }

// Tensors of hidden features that the call gives no memory for: dz, or z where it was not kept, and
// up or dup beside it, and h.
int temporaries_of(const MlpBackward& a) {
  const bool needs = wants_dz(a) && !(a.z.defined() && a.overwrite_z);
  return (needs ? (is_gated(a.activation) ? 2 : 1) : 0) + (wants_h(a) ? 1 : 0);
}

// Computes z, and up, as the forward pass would have kept them.
void recompute_z(const Context& context, MlpBackward& a, HiddenRows& memory) {
  const std::int64_t hidden = a.weight.sizes[0];
  const bool gated = is_gated(a.activation);
  a.z = memory.next(hidden);
  linear_forward(context,
                 {.x = a.x, .weight = a.weight, .bias = gated ? TensorView{} : a.bias, .y = a.z});
  if (!gated) return;
  a.up = memory.next(hidden);
  linear_forward(context, {.x = a.x, .weight = a.up_weight, .y = a.up});
}

// The gradients of z and up; h as well where it is defined.
void through_activation(const Context& context, const MlpBackward& a, const TensorView& dz,
                        const TensorView& dup, const TensorView& h) {
  const bool gated = is_gated(a.activation);
  if (!a.down_weight.defined()) {
    pointwise_backward(context, {.op = a.activation,
                                 .dy = a.dy,
                                 .x = a.z,
                                 .up = a.up,
                                 .bias = gated ? a.bias : TensorView{},
                                 .up_bias = a.up_bias,
                                 .dx = dz,
                                 .dup = dup});
  } else if (gated) {
    linear_dgated(context, {.dy = a.dy,
                            .weight = a.down_weight,
                            .gate = a.z,
                            .up = a.up,
                            .bias = a.bias,
                            .up_bias = a.up_bias,
                            .activation = a.activation,
                            .dgate = dz,
                            .dup = dup,
                            .h = h});
  } else {
    linear_dact(context, {.dy = a.dy,
                          .weight = a.down_weight,
                          .z = a.z,
                          .activation = a.activation,
                          .dz = dz,
                          .h = h,
                          .dbias = a.dbias,
                          .accumulate_dbias = a.accumulate_dbias});
  }
}

// Computes h from z where that was kept, without gradients.
void recompute_h(const Context& context, const MlpBackward& a, const TensorView& h) {
  if (!a.z.defined()) return run_first_layer(context, a, h);
  const bool gated = is_gated(a.activation);
  pointwise_forward(context, {.op = a.activation,
                              .x = a.z,
                              .up = a.up,
                              .bias = gated ? a.bias : TensorView{},
                              .up_bias = a.up_bias,
                              .y = h});
}

void through_first_layer(const Context& context, const MlpBackward& a, const TensorView& dz,
                         const TensorView& dup, bool is_first) {
  const bool gated = is_gated(a.activation);
  // linear_dact has summed dz already.
  const bool sums_dz = gated || !a.down_weight.defined();
  LinearBackward layer{.dy = dz,
                       .x = a.x,
                       .weight = a.weight,
                       .dx = a.dx,
                       .dweight = a.dweight,
                       .dbias = sums_dz ? a.dbias : TensorView{},
                       .dweight_algorithm = a.dweight_algorithm,
                       .accumulate_dx = !is_first,
                       .accumulate_dweight = a.accumulate_dweight,
                       .accumulate_dbias = a.accumulate_dbias};
  linear_backward(context, layer);
  if (!gated) return;
  layer.dy = dup;
  layer.weight = a.up_weight;
  layer.dweight = a.dup_weight;
  layer.dbias = a.dup_bias;
  layer.accumulate_dx = true;
  linear_backward(context, layer);
}

void run_part(const Context& context, MlpBackward a, HiddenRows& memory, bool is_first) {
  const std::int64_t hidden = a.weight.sizes[0];
  const bool over_z = has_dz_over_z(a);
  const TensorView h = wants_h(a) ? memory.next(hidden) : TensorView{};
  TensorView dz, dup;
  if (wants_dz(a)) {
    if (!a.z.defined()) recompute_z(context, a, memory);
    dz = over_z ? a.z : memory.next(hidden);
    if (is_gated(a.activation)) dup = over_z ? a.up : memory.next(hidden);
    through_activation(context, a, dz, dup, h);
  } else if (h.defined()) {
    recompute_h(context, a, h);
  }
  if (a.ddown_weight.defined()) {
    linear_backward(context, {.dy = a.dy,
                              .x = h.defined() ? h : a.h,
                              .weight = a.down_weight,
                              .dweight = a.ddown_weight,
                              .dweight_algorithm = a.dweight_algorithm,
                              .accumulate_dweight = a.accumulate_dweight});
  }
  if (wants_dz(a)) through_first_layer(context, a, dz, dup, is_first);
}

// The sums of the columns of dy. The op is given a layer without terms, as no product is wanted.
void sum_rows(const Context& context, const MlpBackward& a) {
  linear_backward(context, {.dy = a.dy,
                            .x = part_of(a.x, a.x.rank - 1, 0, 0),
                            .weight = part_of(a.down_weight, 1, 0, 0),
                            .dbias = a.ddown_bias,
                            .accumulate_dbias = a.accumulate_dbias});
}

void run_backward(const Context& context, const MlpBackward& a) {
  const std::int64_t hidden = a.weight.sizes[0];
  const std::int64_t features = features_of_part(context.device.type, rows_and_cols(a.x).rows,
                                                 hidden, size_of(a.x.dtype), a.parts);
  HiddenRows memory(name_of_op(a), context, a.x, features, temporaries_of(a));
  std::int64_t begin = 0;
  do {  // once without hidden features: gradients of nothing are 0
    const std::int64_t count = std::min(features, hidden - begin);
    memory.reset();
    run_part(context, part_of(a, begin, count), memory, begin == 0);
    begin += features;
  } while (begin < hidden);
  if (a.ddown_bias.defined()) sum_rows(context, a);
}

constexpr Backends<MlpForward> kForward{.cpu = run_forward,
                                        .cuda = kHasCuda ? run_forward : nullptr};
constexpr Backends<MlpBackward> kBackward{.cpu = run_backward,
                                          .cuda = kHasCuda ? run_backward : nullptr};

}  // namespace

void mlp_forward(const Context& context, const MlpForward& arguments) {
  check(kOp, context, arguments, false);
  run_on(kOp, kForward, context, arguments);
}

void mlp_backward(const Context& context, const MlpBackward& arguments) {
  check(kOp, context, arguments, false);
  run_on(kOp, kBackward, context, arguments);
}

void gated_mlp_forward(const Context& context, const MlpForward& arguments) {
  check(kGatedOp, context, arguments, true);
  run_on(kGatedOp, kForward, context, arguments);
}

void gated_mlp_backward(const Context& context, const MlpBackward& arguments) {
  check(kGatedOp, context, arguments, true);
  run_on(kGatedOp, kBackward, context, arguments);
}

}  // namespace transformer_kernels
