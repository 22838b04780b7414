// SPDX-License-Identifier: MIT
// The passes call the public ops of products and of scores, chunk by chunk.
#include "transformer_kernels/loss/token_log_probs.h"

#include "core/overlap.h"
#include "linear_loss/chunks.h"

namespace transformer_kernels {
namespace {

constexpr const char* kOp = "linear_token_log_probs";

void check(const Context& context, const LinearTokenLogProbsForward& a) {
  check_layer(kOp, context, a.layer, {});
  check_apart(kOp,
              {{"log_probs", a.log_probs},
               {"entropy", a.entropy},
               {"accuracy", a.accuracy},
               {"top", a.top},
               {"spread", a.spread},
               {"mean", a.mean}},
              {{"x", a.layer.x},
               {"linear_weight", a.layer.linear_weight},
               {"linear_bias", a.layer.linear_bias},
               {"target", a.target}});
}

void check(const Context& context, const LinearTokenLogProbsBackward& a) {
  check_layer(kOp, context, a.layer, a.gradients);
  check_apart(kOp,
              {{"dx", a.gradients.dx},
               {"dlinear_weight", a.gradients.dlinear_weight},
               {"dlinear_bias", a.gradients.dlinear_bias}},
              {{"dlog_probs", a.dlog_probs},
               {"dentropy", a.dentropy},
               {"x", a.layer.x},
               {"linear_weight", a.layer.linear_weight},
               {"linear_bias", a.layer.linear_bias},
               {"target", a.target},
               {"top", a.top},
               {"spread", a.spread},
               {"mean", a.mean}});
}

void run(const Context& context, const LinearTokenLogProbsForward& a) {
  const Chunks chunks(kOp, context, a.layer);
  chunks.for_each(context, [&](const Chunk& chunk, const TensorView& logits) {
    token_log_probs_forward(context, {.x = logits,
                                      .target = chunk.numbers(a.target),
                                      .ignore_index = a.ignore_index,
                                      .softcap = a.softcap,
                                      .log_probs = chunk.numbers(a.log_probs),
                                      .entropy = chunk.numbers(a.entropy),
                                      .accuracy = chunk.numbers(a.accuracy),
                                      .top = chunk.numbers(a.top),
                                      .spread = chunk.numbers(a.spread),
                                      .mean = chunk.numbers(a.mean)});
  });
}

void run(const Context& context, const LinearTokenLogProbsBackward& a) {
  const Chunks chunks(kOp, context, a.layer);
  const Gradients gradients(kOp, context, a.layer, chunks, a.gradients);
  chunks.for_each(context, [&](const Chunk& chunk, const TensorView& logits) {
    token_log_probs_backward(context, {.dlog_probs = chunk.numbers(a.dlog_probs),
                                       .dentropy = chunk.numbers(a.dentropy),
                                       .x = logits,
                                       .target = chunk.numbers(a.target),
                                       .top = chunk.numbers(a.top),
                                       .spread = chunk.numbers(a.spread),
                                       .mean = chunk.numbers(a.mean),
                                       .ignore_index = a.ignore_index,
                                       .softcap = a.softcap,
                                       .dx = logits});
    gradients.add(context, chunk, logits);
  });
  gradients.finish(context);
}

}  // namespace

void linear_token_log_probs_forward(const Context& context,
                                    const LinearTokenLogProbsForward& arguments) {
  check(context, arguments);
  check_and_run(kOp, context, [&](const Context& each) { run(each, arguments); });
}

void linear_token_log_probs_backward(const Context& context,
                                     const LinearTokenLogProbsBackward& arguments) {
  check(context, arguments);
  check_and_run(kOp, context, [&](const Context& each) { run(each, arguments); });
}

}  // namespace transformer_kernels
