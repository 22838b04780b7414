// SPDX-License-Identifier: MIT
// A linear classifier, trained by gradient descent: forward pass, cross-entropy with its gradient
// in the same pass, and the gradients of the layer.
#include <transformer_kernels/linear/linear.h>
#include <transformer_kernels/loss/cross_entropy.h>

#include <algorithm>
#include <cstdio>

#include "tensors.h"

namespace {

constexpr std::int64_t kSamples = 512, kFeatures = 64, kClasses = 10;
constexpr int kSteps = 200;
constexpr float kRate = 2;

// The layer and the memory of its gradients.
struct Layer {
  Floats weight = Floats(kClasses * kFeatures), bias = Floats(kClasses);
  Floats dweight = weight, dbias = bias;

  tfk::TensorView weight_view() { return view(weight, {kClasses, kFeatures}); }

  void forward(Floats& x, Floats& y) {
    tfk::linear_forward({}, {.x = view(x, {kSamples, kFeatures}),
                             .weight = weight_view(),
                             .bias = view(bias, {kClasses}),
                             .y = view(y, {kSamples, kClasses})});
  }

  void backward(Floats& x, Floats& dy) {
    tfk::linear_backward({}, {.dy = view(dy, {kSamples, kClasses}),
                              .x = view(x, {kSamples, kFeatures}),
                              .weight = weight_view(),
                              .dweight = view(dweight, {kClasses, kFeatures}),
                              .dbias = view(dbias, {kClasses})});
  }

  void step() {
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] -= kRate * dweight[i];
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] -= kRate * dbias[i];
  }
};

// The mean loss; `logits` becomes its gradient.
float loss_and_gradient(Floats& logits, std::vector<std::int64_t>& labels) {
  float loss = 0;
  const tfk::TensorView x = view(logits, {kSamples, kClasses});
  tfk::cross_entropy_forward(
      {}, {.x = x,
           .target = tfk::TensorView::contiguous(labels.data(), tfk::DType::kInt64, {}, {kSamples}),
           .loss = view(&loss, {}),
           .dx = x});
  return loss;
}

// The class that a layer with random weights, the teacher, gives each sample.
std::vector<std::int64_t> labels_of(Floats& x) {
  Layer teacher;
  teacher.weight = random_values({kClasses, kFeatures}, 1);
  Floats logits(kSamples * kClasses);
  teacher.forward(x, logits);
  std::vector<std::int64_t> labels(kSamples);
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const auto row = logits.begin() + i * kClasses;
    labels[i] = std::max_element(row, row + kClasses) - row;
  }
  return labels;
}

}  // namespace

int main() {
  Floats x = random_values({kSamples, kFeatures}, 2), logits(kSamples * kClasses);
  std::vector<std::int64_t> labels = labels_of(x);
  Layer layer;
  float first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    layer.forward(x, logits);
    last = loss_and_gradient(logits, labels);
    if (step == 0) first = last;
    layer.backward(x, logits);
    layer.step();
  }
  std::printf("training: the loss falls from %.3f to %.3f in %d steps\n", first, last, kSteps);
  return last < first / 8 ? 0 : 1;
}
