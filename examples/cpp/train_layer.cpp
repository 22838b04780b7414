// SPDX-License-Identifier: MIT
// A linear classifier, trained by gradient descent over micro-batches: forward pass, cross-entropy
// with its gradient in the same pass, and the gradients of the layer, which each micro-batch but
// the first adds to what is there.
#include <transformer_kernels/linear/linear.h>
#include <transformer_kernels/loss/cross_entropy.h>

#include <algorithm>
#include <cstdio>

#include "tensors.h"

namespace {

constexpr std::int64_t kSamples = 512, kMicroBatch = 128, kFeatures = 64, kClasses = 10;
constexpr int kSteps = 200;
constexpr float kRate = 2 * static_cast<float>(kMicroBatch) / kSamples;  // of a sum of mean losses

// The layer and the memory of its gradients.
struct Layer {
  Floats weight = Floats(kClasses * kFeatures), bias = Floats(kClasses);
  Floats dweight = weight, dbias = bias;

  tfk::TensorView weight_view() { return view(weight, {kClasses, kFeatures}); }

  void forward(const tfk::TensorView& x, const tfk::TensorView& y) {
    tfk::linear_forward({},
                        {.x = x, .weight = weight_view(), .bias = view(bias, {kClasses}), .y = y});
  }

  void backward(const tfk::TensorView& x, const tfk::TensorView& dy, bool accumulate) {
    tfk::linear_backward({}, {.dy = dy,
                              .x = x,
                              .weight = weight_view(),
                              .dweight = view(dweight, {kClasses, kFeatures}),
                              .dbias = view(dbias, {kClasses}),
                              .accumulate_dweight = accumulate,
                              .accumulate_dbias = accumulate});
  }

  void step() {
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] -= kRate * dweight[i];
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] -= kRate * dbias[i];
  }
};

// The mean loss; `logits` becomes its gradient.
float loss_and_gradient(const tfk::TensorView& logits, std::int64_t* labels) {
  float loss = 0;
  const std::int64_t rows = logits.sizes[0];
  tfk::cross_entropy_forward(
      {}, {.x = logits,
           .target = tfk::TensorView::contiguous(labels, tfk::DType::kInt64, {}, {rows}),
           .loss = view(&loss, {}),
           .dx = logits});
  return loss;
}

// The class that a layer with random weights, the teacher, gives each sample.
std::vector<std::int64_t> labels_of(Floats& x) {
  Layer teacher;
  teacher.weight = random_values({kClasses, kFeatures}, 1);
  Floats logits(kSamples * kClasses);
  teacher.forward(view(x, {kSamples, kFeatures}), view(logits, {kSamples, kClasses}));
  std::vector<std::int64_t> labels(kSamples);
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const auto row = logits.begin() + i * kClasses;
    labels[i] = std::max_element(row, row + kClasses) - row;
  }
  return labels;
}

// The mean loss of a step of training.
float train(Layer& layer, Floats& x, std::vector<std::int64_t>& labels) {
  Floats memory(kMicroBatch * kClasses);
  const tfk::TensorView logits = view(memory, {kMicroBatch, kClasses});
  float loss = 0;
  for (std::int64_t first = 0; first < kSamples; first += kMicroBatch) {
    const tfk::TensorView part = view(x.data() + first * kFeatures, {kMicroBatch, kFeatures});
    layer.forward(part, logits);
    loss += loss_and_gradient(logits, labels.data() + first);
    layer.backward(part, logits, first > 0);
  }
  layer.step();
  return loss * kMicroBatch / kSamples;
}

}  // namespace

int main() {
  Floats x = random_values({kSamples, kFeatures}, 2);
  std::vector<std::int64_t> labels = labels_of(x);
  Layer layer;
  float first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    last = train(layer, x, labels);
    if (step == 0) first = last;
  }
  std::printf("training: the loss falls from %.3f to %.3f in %d steps\n", first, last, kSteps);
  return last < first / 8 ? 0 : 1;
}
