// SPDX-License-Identifier: MIT
// The passes call the public ops of products and of losses, chunk by chunk.
#include "core/dispatch.h"
#include "core/overlap.h"
#include "linear_loss/chunks.h"
#include "transformer_kernels/loss/token_log_probs.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "linear_cross_entropy";

bool reduces(const LinearCrossEntropyInputs& in) { return in.reduction != Reduction::kNone; }

void check(const Context& context, const LinearCrossEntropyForward& a) {
  const LinearCrossEntropyInputs& in = a.inputs;
  check_layer(kOp, context, in.layer, a.gradients);
  ArgumentChecker(kOp, context.device).typed_or_float32("loss", a.loss, in.layer.x.dtype, "x");
  check_apart(kOp,
              {{"loss", a.loss},
               {"entropy", a.entropy},
               {"accuracy", a.accuracy},
               {"top", a.top},
               {"spread", a.spread},
               {"share", a.share},
               {"mean", a.mean},
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
  const LinearCrossEntropyInputs& in = a.inputs;
  check_layer(kOp, context, in.layer, a.gradients);
  check_value(a.dloss.defined() || a.dentropy.defined(), kOp,
              ": dloss is missing, expected it or dentropy");
  // The op inside takes one number of all rows, or one for each.
  check_value(!reduces(in) || !a.dentropy.defined() || a.dentropy.numel() == 1, kOp,
              ": dentropy has ", a.dentropy.numel(), " elements, expected 1 (of a reduction)");
  check_apart(kOp,
              {{"dx", a.gradients.dx},
               {"dlinear_weight", a.gradients.dlinear_weight},
               {"dlinear_bias", a.gradients.dlinear_bias}},
              {{"dloss", a.dloss},
               {"dentropy", a.dentropy},
               {"x", in.layer.x},
               {"linear_weight", in.layer.linear_weight},
               {"linear_bias", in.layer.linear_bias},
               {"target", in.target},
               {"weight", in.weight},
               {"top", a.top},
               {"spread", a.spread},
               {"share", a.share},
               {"mean", a.mean}});
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

// The op of a mean or a sum, with neither losses nor results. Rows have the weight of their class
// in `weight`.
ReduceLosses reduction_of(const LinearCrossEntropyInputs& in, const TensorView& weight) {
  return {.target = in.target,
          .weight = weight,
          .classes = in.layer.linear_weight.sizes[0],
          .ignore_index = in.ignore_index,
          .reduction = in.reduction};
}

// The divisor of a mean; absent for another reduction, and where it is not wanted.
class Total {
 public:
  Total(const Context& context, const LinearCrossEntropyInputs& in, const TensorView& weight,
        bool wanted = true) {
    if (in.reduction != Reduction::kMean || !wanted) return;
    memory_.emplace(kOp, context, accumulate_dtype(in.layer.x.dtype), 1);
    ReduceLosses total = reduction_of(in, weight);
    total.total = view();
    reduce_losses(context, total);
  }

  TensorView view() const { return memory_ ? memory_->numbers() : TensorView{}; }

 private:
  std::optional<ScratchTensor> memory_;
};

// A result that has one number a row until it is reduced; absent where it is not wanted.
class OfRows {
 public:
  OfRows(const Context& context, const LinearCrossEntropyInputs& in, const Chunks& chunks,
         const TensorView& result)
      : in_(in),
        result_(result) {
    if (!result.defined() || !reduces(in)) return;
    memory_.emplace(kOp, context, accumulate_dtype(in.layer.x.dtype), chunks.rows());
  }

  TensorView view() const { return memory_ ? memory_->numbers() : result_; }

  void reduce(const Context& context, const TensorView& weight) const {
    if (!memory_) return;
    ReduceLosses reduction = reduction_of(in_, weight);
    reduction.losses = view();
    reduction.loss = result_;
    reduce_losses(context, reduction);
  }

 private:
  const LinearCrossEntropyInputs& in_;
  TensorView result_;
  std::optional<ScratchTensor> memory_;
};

void run(const Context& context, const LinearCrossEntropyForward& a) {
  const LinearCrossEntropyInputs& in = a.inputs;
  const Total total(context, in, in.weight);
  const Chunks chunks(kOp, context, in.layer);
  const Gradients gradients(kOp, context, in.layer, chunks, a.gradients);
  const OfRows losses(context, in, chunks, a.loss);
  const OfRows entropies(context, in, chunks, a.entropy);
  const OfRows accuracies(context, in, chunks, a.accuracy);
  const bool observes = a.entropy.defined() || a.accuracy.defined() || a.mean.defined();
  chunks.for_each(context, [&](const Chunk& chunk, const TensorView& logits) {
    const TensorView target = chunk.numbers(in.target);
    if (observes) {
      token_log_probs_forward(context, {.x = logits,
                                        .target = target,
                                        .ignore_index = in.ignore_index,
                                        .softcap = in.softcap,
                                        .entropy = chunk.numbers(entropies.view()),
                                        .accuracy = chunk.numbers(accuracies.view()),
                                        .mean = chunk.numbers(a.mean)});
    }
    auto loss = with_options<CrossEntropyForward>(in);
    loss.x = logits;
    loss.target = target;
    loss.reduction = Reduction::kNone;
    loss.loss = chunk.numbers(losses.view());
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
  losses.reduce(context, in.weight);
  entropies.reduce(context, {});
  accuracies.reduce(context, {});
}

// The gradient that reaches each row, or all of them from a reduction.
TensorView gradient_of(const LinearCrossEntropyInputs& in, const Chunk& chunk, TensorView view) {
  if (!reduces(in)) return chunk.numbers(view);
  if (view.numel() == 1) view.rank = 0;
  return view;
}

void run(const Context& context, const LinearCrossEntropyBackward& a) {
  const LinearCrossEntropyInputs& in = a.inputs;
  const bool both = a.dloss.defined() && a.dentropy.defined();
  const Total total(context, in, in.weight, a.dloss.defined());
  const Total counted(context, in, {}, a.dentropy.defined());
  const Chunks chunks(kOp, context, in.layer, both ? 2 : 1);
  const Gradients gradients(kOp, context, in.layer, chunks, a.gradients);
  std::optional<ScratchTensor> memory;
  if (both) memory.emplace(chunks.another(kOp, context));
  chunks.for_each(context, [&](const Chunk& chunk, const TensorView& logits) {
    const TensorView dlogits = both ? chunks.view(chunk, *memory) : logits;
    if (a.dloss.defined()) {
      auto loss = with_options<CrossEntropyBackward>(in);
      loss.dloss = gradient_of(in, chunk, a.dloss);
      loss.x = logits;
      loss.target = chunk.numbers(in.target);
      loss.top = chunk.numbers(a.top);
      loss.spread = chunk.numbers(a.spread);
      loss.share = chunk.numbers(a.share);
      loss.total = total.view();
      loss.dx = dlogits;
      cross_entropy_backward(context, loss);
    }
    if (a.dentropy.defined()) {
      token_log_probs_backward(context, {.dentropy = gradient_of(in, chunk, a.dentropy),
                                         .divisor = counted.view(),
                                         .x = logits,
                                         .target = chunk.numbers(in.target),
                                         .top = chunk.numbers(a.top),
                                         .spread = chunk.numbers(a.spread),
                                         .mean = chunk.numbers(a.mean),
                                         .ignore_index = in.ignore_index,
                                         .softcap = in.softcap,
                                         .dx = dlogits,
                                         .accumulate = both});
    }
    gradients.add(context, chunk, dlogits);
  });
  gradients.finish(context);
}

}  // namespace

void linear_cross_entropy_forward(const Context& context,
                                  const LinearCrossEntropyForward& arguments) {
  check(context, arguments);
  check_and_run(kOp, context, [&](const Context& each) { run(each, arguments); });
}

void linear_cross_entropy_backward(const Context& context,
                                   const LinearCrossEntropyBackward& arguments) {
  check(context, arguments);
  check_and_run(kOp, context, [&](const Context& each) { run(each, arguments); });
}

}  // namespace transformer_kernels
