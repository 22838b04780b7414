// SPDX-License-Identifier: MIT
// The head of a language model, trained by AdamW: the logits of its tokens are in memory a chunk of
// rows at a time, and the loss, its gradients and the accuracy come from one pass. A step of the
// optimizer takes a list of tensors, here of one, and clips their gradients as it goes.
#include <transformer_kernels/linear_loss/linear_loss.h>
#include <transformer_kernels/optimizer/adamw.h>

#include <cstdio>

#include "tensors.h"

namespace {

constexpr std::int64_t kVocabulary = 2000, kChannels = 64, kTokens = 1024;
constexpr std::int64_t kChunkBytes = 1 << 20;  // of 8 MB of logits
constexpr int kSteps = 40;

struct Head {
  Floats weight = Floats(kVocabulary * kChannels), dweight = weight;
  Floats exp_avg = weight, exp_avg_sq = weight;
  float steps = 0;

  void step() {
    const auto matrix = [](Floats& values) { return view(values, {kVocabulary, kChannels}); };
    const tfk::OptimizerTensor tensors[] = {{.param = matrix(weight),
                                             .grad = matrix(dweight),
                                             .exp_avg = matrix(exp_avg),
                                             .exp_avg_sq = matrix(exp_avg_sq),
                                             .step = view(&steps, {})}};
    constexpr tfk::AdamWGroup kGroups[] = {{.lr = 0.03, .weight_decay = 0.01}};
    tfk::adamw_step({}, {.tensors = tensors, .groups = kGroups, .options = {.max_norm = 1}});
  }
};

struct Result {
  float loss = 0, accuracy = 0;
};

// The mean loss and the share of tokens that are predicted right; the head's gradient is left in
// its memory.
Result loss_and_gradient(Head& head, Floats& hidden, std::vector<std::int64_t>& next) {
  Result result;
  tfk::LinearCrossEntropyForward pass;
  pass.inputs.layer = {.x = view(hidden, {kTokens, kChannels}),
                       .linear_weight = view(head.weight, {kVocabulary, kChannels}),
                       .chunk_bytes = kChunkBytes};
  pass.inputs.target = tfk::TensorView::contiguous(next.data(), tfk::DType::kInt64, {}, {kTokens});
  pass.loss = view(&result.loss, {});
  pass.accuracy = view(&result.accuracy, {});
  pass.gradients.dlinear_weight = view(head.dweight, {kVocabulary, kChannels});
  tfk::linear_cross_entropy_forward({}, pass);
  return result;
}

// A text in which each token has one that follows it.
std::vector<std::int64_t> random_tokens() {
  std::mt19937 engine(1);
  std::uniform_int_distribution<std::int64_t> token(0, kVocabulary - 1);
  std::vector<std::int64_t> tokens(kTokens);
  for (std::int64_t& each : tokens) each = token(engine);
  return tokens;
}

}  // namespace

int main() {
  Floats hidden = random_values({kTokens, kChannels}, 2);
  std::vector<std::int64_t> next = random_tokens();
  Head head;
  const Result first = loss_and_gradient(head, hidden, next);
  Result last = first;
  for (int step = 0; step < kSteps; ++step) {
    head.step();
    last = loss_and_gradient(head, hidden, next);
  }
  std::printf(
      "head: the loss falls from %.2f to %.2f in %d steps; %.0f %% of the tokens are right\n",
      first.loss, last.loss, kSteps, 100 * last.accuracy);
  return last.loss < first.loss / 8 && last.accuracy > 0.9f ? 0 : 1;
}
