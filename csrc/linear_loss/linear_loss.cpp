// SPDX-License-Identifier: MIT
// The passes call the public ops of products and of losses, chunk by chunk: once for all rows to
// check the arguments, which no call writes before, and then to run.
#include "transformer_kernels/linear_loss/linear_loss.h"

#include "core/backends.h"
#include "core/dispatch.h"
#include "core/overlap.h"
#include "linear_loss/chunks.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "linear_cross_entropy";

// Chunks are made of these, before an op inside could refuse them.
void check_layer(const ArgumentChecker& check, const char* op, const LinearLossLayer& layer) {
  check.floating("x", layer.x);
  check.floating("linear_weight", layer.linear_weight);
  check_value(layer.linear_weight.rank == 2, op, ": linear_weight has ", layer.linear_weight.rank,
              " dimensions, expected 2");
  check_value(layer.linear_weight.sizes[0] > 0, op, ": linear_weight has shape ",
              shape_of(layer.linear_weight), ", expected a class or more");
  check_value(layer.chunk_bytes >= 0, op, ": chunk_bytes is ", layer.chunk_bytes,
              ", expected 1 or more, or 0 (the default)");
}

// Sums that are rounded at the end are contiguous.
void check_gradients(const ArgumentChecker& check, const LinearLossLayer& layer,
                     const LinearLossGradients& gradients) {
  const TensorView& dweight = gradients.dlinear_weight;
  if (!dweight.defined()) return;
  check.same_shape("dlinear_weight", dweight, "linear_weight", layer.linear_weight);
  check.packed("dlinear_weight", dweight, dweight.numel(), "those of linear_weight");
}

void check(const Context& context, const LinearCrossEntropyForward& a) {
  const ArgumentChecker check(kOp, context.device);
  const LinearCrossEntropyInputs& in = a.inputs;
  check_layer(check, kOp, in.layer);
  check_gradients(check, in.layer, a.gradients);
  check.typed_or_float32("loss", a.loss, in.layer.x.dtype, "x");
  check_apart(kOp,
              {{"loss", a.loss},
               {"top", a.top},
               {"spread", a.spread},
               {"share", a.share},
               {"dx", a.gradients.dx},
               {"dlinear_weight", a.gradients.dlinear_weight},
               {"dlinear_bias", a.gradients.dlinear_bias}},
              {{"x", in.layer.x},
               {"linear_weight", in.layer.linear_weight},
               {"linear_bias", in.layer.linear_bias},
               {"target", in.target},
               {"weight", in.weight}});
}

void check(const Context& context, const LinearCrossEntropyBackward& a) {
  const ArgumentChecker check(kOp, context.device);
  const LinearCrossEntropyInputs& in = a.inputs;
  check_layer(check, kOp, in.layer);
  check_gradients(check, in.layer, a.gradients);
  check_apart(kOp,
              {{"dx", a.gradients.dx},
               {"dlinear_weight", a.gradients.dlinear_weight},
               {"dlinear_bias", a.gradients.dlinear_bias}},
              {{"dloss", a.dloss},
               {"x", in.layer.x},
               {"linear_weight", in.layer.linear_weight},
               {"linear_bias", in.layer.linear_bias},
               {"target", in.target},
               {"weight", in.weight},
               {"top", a.top},
               {"spread", a.spread},
               {"share", a.share}});
}

// The op of a loss with the options of the call, but with no tensor of a row.
template <class Op>
Op with_options(const LinearCrossEntropyInputs& in) {
  Op op;
  op.weight = in.weight;
  op.ignore_index = in.ignore_index;
  op.label_smoothing = in.label_smoothing;
  op.z_loss = in.z_loss;
  op.softcap = in.softcap;
  op.reduction = in.reduction;
  return op;
}

// The op of a mean or a sum, with neither losses nor results.
ReduceLosses reduction_of(const LinearCrossEntropyInputs& in) {
  return {.target = in.target,
          .weight = in.weight,
          .classes = in.layer.linear_weight.sizes[0],
          .ignore_index = in.ignore_index,
          .reduction = in.reduction};
}

// The divisor of a mean; absent for another reduction.
class Total {
 public:
  Total(const Context& context, const LinearCrossEntropyInputs& in) {
    if (in.reduction != Reduction::kMean) return;
    memory_.emplace(kOp, context, accumulate_dtype(in.layer.x.dtype), 1);
    ReduceLosses total = reduction_of(in);
    total.total = view();
    reduce_losses(context, total);
  }

  TensorView view() const { return memory_ ? memory_->numbers() : TensorView{}; }

 private:
  std::optional<ScratchTensor> memory_;
};

// The losses of rows until they are reduced.
ScratchTensor losses_of(const Context& context, const LinearLossLayer& layer,
                        const Chunks& chunks) {
  return {kOp, context, accumulate_dtype(layer.x.dtype), chunks.rows()};
}

void run(const Context& context, const LinearCrossEntropyForward& a) {
  const LinearCrossEntropyInputs& in = a.inputs;
  const bool reduces = in.reduction != Reduction::kNone;
  const Total total(context, in);
  const Chunks chunks(kOp, context, in.layer);
  const Gradients gradients(kOp, context, in.layer, chunks, a.gradients);
  const ScratchTensor of_rows = losses_of(context, in.layer, chunks);
  const TensorView losses = reduces ? of_rows.numbers() : a.loss;
  chunks.for_each(context, [&](const Chunk& chunk, const TensorView& logits) {
    auto loss = with_options<CrossEntropyForward>(in);
    loss.x = logits;
    loss.target = chunk.numbers(in.target);
    loss.reduction = Reduction::kNone;
    loss.loss = chunk.numbers(losses);
    loss.top = chunk.numbers(a.top);
    loss.spread = chunk.numbers(a.spread);
    loss.share = chunk.numbers(a.share);
    if (gradients.any()) {
      loss.dx = logits;
      loss.divisor = total.view();
    }
    cross_entropy_forward(context, loss);
    gradients.add(context, chunk, logits);
  });
  gradients.finish(context);
  if (!reduces) return;
  ReduceLosses reduction = reduction_of(in);
  reduction.losses = losses;
  reduction.loss = a.loss;
  reduce_losses(context, reduction);
}

void run(const Context& context, const LinearCrossEntropyBackward& a) {
  const LinearCrossEntropyInputs& in = a.inputs;
  const bool reduces = in.reduction != Reduction::kNone;
  const Total total(context, in);
  const Chunks chunks(kOp, context, in.layer);
  const Gradients gradients(kOp, context, in.layer, chunks, a.gradients);
  chunks.for_each(context, [&](const Chunk& chunk, const TensorView& logits) {
    auto loss = with_options<CrossEntropyBackward>(in);
    loss.dloss = reduces ? a.dloss : chunk.numbers(a.dloss);
    loss.x = logits;
    loss.target = chunk.numbers(in.target);
    loss.top = chunk.numbers(a.top);
    loss.spread = chunk.numbers(a.spread);
    loss.share = chunk.numbers(a.share);
    loss.total = total.view();
    loss.dx = logits;
    cross_entropy_backward(context, loss);
    gradients.add(context, chunk, logits);
  });
  gradients.finish(context);
}

template <class Arguments>
void check_and_run(const Context& context, const Arguments& arguments) {
  Context checking = context;
  checking.checks_only = true;
  check(context, arguments);
  run(checking, arguments);
  if (context.checks_only) return;
  if constexpr (kHasCuda) {
    if (context.device.type == DeviceType::kCuda) {
      const cuda::CurrentDevice current(kOp, context.device.index);  // for memory
      return run(context, arguments);
    }
  }
  run(context, arguments);
}

}  // namespace

void linear_cross_entropy_forward(const Context& context,
                                  const LinearCrossEntropyForward& arguments) {
  check_and_run(context, arguments);
}

void linear_cross_entropy_backward(const Context& context,
                                   const LinearCrossEntropyBackward& arguments) {
  check_and_run(context, arguments);
}

}  // namespace transformer_kernels
