// SPDX-License-Identifier: MIT
// Entropies and accuracies beside the loss of a linear layer, and log-probabilities of tokens.
#include <string>

#include "backend_test.h"
#include "error_of.h"
#include "linear_loss/linear_loss_cases.h"
#include "loss/token_log_probs_cases.h"

namespace transformer_kernels::testing {
namespace {

// The layer's logits as those of token_log_probs, with the gradients of `scores`.
ScoreInputs scores_of(const LayerInputs& in, ScoreInputs scores, DType dtype) {
  scores.m = {in.s.rows, in.s.classes};
  scores.o.softcap = in.o.loss.softcap;
  scores.x = rounded(dtype, in.logits().sum);
  scores.tokens = in.loss.labels;
  return scores;
}

// An accuracy is only certain where rounding cannot change which logit is the largest.
bool is_certain(const ScoreInputs& in, DType dtype, std::int64_t r) {
  if (in.tokens[r] == kIgnored) return true;
  const double own = in.x[r * in.m.cols + in.tokens[r]];
  for (std::int64_t c = 0; c < in.m.cols; ++c) {
    const double other = in.x[r * in.m.cols + c];
    const double step = 8 * unit_roundoff(dtype) * (std::abs(own) + std::abs(other));
    if (c != in.tokens[r] && std::abs(own - other) <= step) return false;
  }
  return true;
}

// The sum or the mean over the rows that are not ignored.
Values reduced_over(const std::vector<std::int64_t>& tokens, const Values& of_rows,
                    Reduction reduction) {
  if (reduction == Reduction::kNone) return of_rows;
  long double sum = 0;
  long double counted = 0;
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    sum += of_rows[r];
    counted += tokens[r] != kIgnored;
  }
  return {static_cast<double>(reduction == Reduction::kMean ? sum / counted : sum)};
}

// Memory for what a call returns beside its loss and its gradients, and for what reaches it.
struct ScoreMemory {
  TestTensor log_probs, entropy, accuracy, top, spread, mean, dlog_probs, dentropy;

  ScoreMemory(Backend& backend, DType dtype, std::int64_t rows, std::int64_t results,
              const ScoreInputs& in)
      : log_probs(backend, arithmetic_of(dtype), 1, rows),
        entropy(backend, arithmetic_of(dtype), 1, results),
        accuracy(backend, arithmetic_of(dtype), 1, results),
        top(backend, arithmetic_of(dtype), 1, rows),
        spread(backend, arithmetic_of(dtype), 1, rows),
        mean(backend, arithmetic_of(dtype), 1, rows),
        dlog_probs(backend, arithmetic_of(dtype), 1, rows, in.dlog_probs),
        dentropy(backend, arithmetic_of(dtype), 1, results, in.dentropy) {}
};

// Gradients of both scores; `in` says how a reduction spreads that of the entropy.
ScoreInputs random_gradients(std::int64_t rows, std::int64_t results, DType dtype) {
  ScoreInputs in{};
  in.dlog_probs = random_normal(rows, arithmetic_of(dtype));
  in.dentropy = random_normal(results, arithmetic_of(dtype));
  return in;
}

class LinearScores : public BackendTest {
 protected:
  static void check_tokens(LayerSizes s, const LayerOptions& o) {
    SCOPED_TRACE(describe_layer(dtype(), s, o));
    const LayerInputs in = random_layer(s, dtype(), o);
    const ScoreInputs given = random_gradients(s.rows, s.rows, dtype());
    const ScoreInputs exact_in = scores_of(in, given, DType::kFloat64);
    const ScoreInputs plain_in = scores_of(in, given, dtype());
    const ScoreReference exact = reference_of(exact_in);
    const ScoreReference plain = reference_of(plain_in);
    LayerRun layer(backend(), dtype(), in);
    ScoreMemory memory(backend(), dtype(), s.rows, s.rows, given);
    const LinearCrossEntropyInputs inputs = layer.inputs();
    const Context context = backend().context();
    linear_token_log_probs_forward(context, {.layer = inputs.layer,
                                             .target = inputs.target,
                                             .ignore_index = inputs.ignore_index,
                                             .softcap = inputs.softcap,
                                             .log_probs = memory.log_probs.vector(),
                                             .entropy = memory.entropy.vector(),
                                             .accuracy = memory.accuracy.vector(),
                                             .top = memory.top.vector(),
                                             .spread = memory.spread.vector(),
                                             .mean = memory.mean.vector()});
    const double noise = 4 * unit_roundoff(dtype());
    expect_within("log_probs", dtype(), memory.log_probs.values(), exact.log_probs, plain.log_probs,
                  40, noise);
    expect_within("entropy", dtype(), memory.entropy.values(), exact.entropy, plain.entropy, 40,
                  noise);
    const Values accuracy = memory.accuracy.values();
    for (std::int64_t r = 0; r < s.rows; ++r) {
      if (!is_certain(plain_in, dtype(), r)) continue;
      EXPECT_EQ(accuracy[r], plain.accuracy[r]) << r;
    }
    linear_token_log_probs_backward(context, {.layer = inputs.layer,
                                              .target = inputs.target,
                                              .ignore_index = inputs.ignore_index,
                                              .softcap = inputs.softcap,
                                              .dlog_probs = memory.dlog_probs.vector(),
                                              .dentropy = memory.dentropy.vector(),
                                              .top = memory.top.vector(),
                                              .spread = memory.spread.vector(),
                                              .mean = memory.mean.vector(),
                                              .gradients = layer.gradients()});
    expect_gradients(layer, dtype(), in, in.gradients(DType::kFloat64, exact.dx),
                     in.gradients(dtype(), plain.dx));
  }

  // A loss with an entropy and an accuracy, and the gradient of the first two or of the second.
  static void check_loss_beside(LayerSizes s, const LayerOptions& o, bool with_dloss) {
    SCOPED_TRACE(describe_layer(dtype(), s, o));
    const LayerInputs in = random_layer(s, dtype(), o);
    const bool reduces = o.loss.reduction != Reduction::kNone;
    ScoreInputs given = random_gradients(s.rows, reduces ? 1 : s.rows, dtype());
    LayerRun layer(backend(), dtype(), in);
    ScoreMemory memory(backend(), dtype(), s.rows, reduces ? 1 : s.rows, given);
    std::ranges::fill(given.dlog_probs, 0);
    given.o.one_dentropy = reduces;
    given.divisor = 1;
    if (o.loss.reduction == Reduction::kMean) {
      given.divisor -= 1;
      for (std::int64_t label : in.loss.labels) given.divisor += label != kIgnored;
    }
    const ScoreInputs exact_in = scores_of(in, given, DType::kFloat64);
    const ScoreInputs plain_in = scores_of(in, given, dtype());
    const ScoreReference exact = reference_of(exact_in);
    const ScoreReference plain = reference_of(plain_in);
    const Context context = backend().context();
    LinearCrossEntropyForward forward = layer.forward(false);
    forward.entropy = memory.entropy.vector();
    forward.accuracy = memory.accuracy.vector();
    forward.mean = memory.mean.vector();
    linear_cross_entropy_forward(context, forward);
    const auto over_rows = [&](const Values& of_rows) {
      return reduced_over(in.loss.labels, of_rows, o.loss.reduction);
    };
    const double count = o.loss.reduction == Reduction::kSum ? s.rows : 1;
    expect_within("entropy", dtype(), memory.entropy.values(), over_rows(exact.entropy),
                  over_rows(plain.entropy), 40 * count, 4 * count * unit_roundoff(dtype()));
    bool certain = true;
    for (std::int64_t r = 0; r < s.rows; ++r) certain = certain && is_certain(plain_in, dtype(), r);
    if (certain) {
      EXPECT_TRUE(close(arithmetic_of(dtype()), memory.accuracy.values(), over_rows(plain.accuracy),
                        count));
    }
    LinearCrossEntropyBackward backward = layer.backward();
    if (!with_dloss) backward.dloss = backward.share = {};
    backward.dentropy = memory.dentropy.vector();
    backward.mean = memory.mean.vector();
    linear_cross_entropy_backward(context, backward);
    expect_gradients(
        layer, dtype(), in,
        in.gradients(DType::kFloat64, dlogits(in, exact_in, with_dloss, DType::kFloat64)),
        in.gradients(dtype(), dlogits(in, plain_in, with_dloss, dtype())));
  }

  // The gradient of logits: the loss's, rounded, and the entropy's on top of it.
  static Values dlogits(const LayerInputs& in, const ScoreInputs& scores, bool with_dloss,
                        DType dtype) {
    Values sum = reference_of(scores).dx;
    if (!with_dloss) return sum;
    LossInputs loss = in.loss;
    loss.x = scores.x;
    const Values of_loss = rounded(dtype, loss.reference().dx);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_loss[i];
    return sum;
  }
};

INSTANTIATE_TEST_SUITE_P(on, LinearScores, all_backends_and_dtypes(), name_of_backend_test);

TEST_P(LinearScores, log_probs_in_chunks) {
  for (std::int64_t rows : {0, 1, 37}) {
    for (std::int64_t classes : {1, 33, 200}) {
      for (std::int64_t chunk_rows : {0, 5, 19}) {
        check_tokens({rows, 24, classes}, {.chunk_rows = chunk_rows});
      }
    }
  }
}

TEST_P(LinearScores, log_probs_with_every_option) {
  for (int bits = 0; bits < 8; ++bits) {
    const auto has = [&](int bit) { return (bits >> bit & 1) != 0; };
    check_tokens({21, 16, 50}, {.bias = has(0),
                                .wide = has(1),
                                .chunk_rows = 8,
                                .transposed = has(1),
                                .loss = {.narrow_labels = has(2), .softcap = has(2) ? 5.0 : 0.0}});
  }
}

TEST_P(LinearScores, entropy_and_accuracy_beside_a_loss) {
  for (Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
    for (bool with_dloss : {false, true}) {
      for (double softcap : {0.0, 5.0}) {
        const LossOptions loss{
            .weight = true, .label_smoothing = 0.1, .softcap = softcap, .reduction = reduction};
        for (std::int64_t chunk_rows : {0, 8}) {
          check_loss_beside({21, 16, 50}, {.chunk_rows = chunk_rows, .loss = loss}, with_dloss);
        }
      }
    }
  }
}

// Gradients in the forward pass overwrite the logits after the scores are read.
TEST_P(LinearScores, entropy_beside_gradients_in_the_forward_pass) {
  const LayerInputs in = random_layer({21, 16, 50}, dtype(), {.chunk_rows = 8});
  const ScoreInputs given = random_gradients(21, 1, dtype());
  ScoreMemory alone(backend(), dtype(), 21, 1, given);
  ScoreMemory beside(backend(), dtype(), 21, 1, given);
  LayerRun run(backend(), dtype(), in);
  LayerRun with_entropy(backend(), dtype(), in);
  const Context context = backend().context();
  LinearCrossEntropyForward a = run.forward(false);
  a.entropy = alone.entropy.vector();
  a.accuracy = alone.accuracy.vector();
  linear_cross_entropy_forward(context, a);
  linear_cross_entropy_forward(context, run.forward(true));
  LinearCrossEntropyForward b = with_entropy.forward(true);
  b.entropy = beside.entropy.vector();
  b.accuracy = beside.accuracy.vector();
  linear_cross_entropy_forward(context, b);
  EXPECT_EQ(beside.entropy.bytes(), alone.entropy.bytes());
  EXPECT_EQ(beside.accuracy.bytes(), alone.accuracy.bytes());
  EXPECT_EQ(with_entropy.dx.bytes(), run.dx.bytes());
  EXPECT_EQ(with_entropy.dweight.bytes(), run.dweight.bytes());
}

TEST(LinearScoresErrors, have_exact_words_and_touch_nothing) {
  const LayerInputs in = random_layer({3, 4, 8}, DType::kBFloat16, {});
  LayerRun run(*cpu_backend(), DType::kBFloat16, in);
  const ScoreInputs given = random_gradients(3, 1, DType::kBFloat16);
  ScoreMemory memory(*cpu_backend(), DType::kBFloat16, 3, 1, given);
  LinearCrossEntropyBackward backward = run.backward();
  backward.dloss = {};
  const auto refused = [&] {
    return error_of([&] { linear_cross_entropy_backward({}, backward); });
  };
  EXPECT_EQ(refused(), "linear_cross_entropy: dloss is missing, expected it or dentropy");
  backward.dentropy = memory.dentropy.vector();
  EXPECT_EQ(refused(), "token_log_probs: mean is missing");
  backward.dentropy = memory.log_probs.vector();
  EXPECT_EQ(refused(),
            "linear_cross_entropy: dentropy has 3 elements, expected 1 (of a reduction)");
  const LinearCrossEntropyInputs inputs = run.inputs();
  const auto refused_tokens = [&](const TensorView& log_probs, std::int64_t ignore_index) {
    return error_of([&] {
      linear_token_log_probs_forward({}, {.layer = inputs.layer,
                                          .target = inputs.target,
                                          .ignore_index = ignore_index,
                                          .log_probs = log_probs});
    });
  };
  EXPECT_EQ(refused_tokens(memory.entropy.vector(), kIgnored),
            "token_log_probs: log_probs has 1 elements, expected 3 (the rows of x)");
  EXPECT_EQ(refused_tokens(inputs.layer.x, kIgnored),
            "linear_token_log_probs: log_probs overlaps x, expected memory of its own");
  EXPECT_TRUE(run.untouched());
  EXPECT_TRUE(memory.log_probs.untouched());
}

}  // namespace
}  // namespace transformer_kernels::testing
