// SPDX-License-Identifier: MIT
// A gated MLP learns the product of two numbers. The forward pass keeps gate and up, over which the
// backward pass writes their gradients; h is computed again.
#include <transformer_kernels/mlp/mlp.h>

#include <cstdio>

#include "tensors.h"

namespace {

constexpr std::int64_t kSamples = 512, kFeatures = 4, kHidden = 32;
constexpr int kSteps = 300;
constexpr float kRate = 0.3f;

struct Parameter {
  std::int64_t rows, cols;
  Floats values = random_values({rows, cols}), gradient = values;

  tfk::TensorView view() { return ::view(values, {rows, cols}); }
  tfk::TensorView gradient_view() { return ::view(gradient, {rows, cols}); }
  void step() {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= kRate * gradient[i];
  }
};

struct GatedMlp {
  Parameter weight{2 * kHidden, kFeatures}, down{1, kHidden};  // of gate and up in one
  Floats z = Floats(kSamples * kHidden), up = z;

  // The rows of the gate, or of up.
  static tfk::TensorView half(tfk::TensorView packed, bool second) {
    if (second) packed.data = static_cast<float*>(packed.data) + kHidden * kFeatures;
    packed.sizes[0] = kHidden;
    return packed;
  }

  void forward(Floats& x, Floats& y) {
    tfk::gated_mlp_forward({}, {.x = view(x, {kSamples, kFeatures}),
                                .weight = half(weight.view(), false),
                                .up_weight = half(weight.view(), true),
                                .down_weight = down.view(),
                                .activation = tfk::Pointwise::kSwiGlu,
                                .z = view(z, {kSamples, kHidden}),
                                .up = view(up, {kSamples, kHidden}),
                                .y = view(y, {kSamples, 1})});
  }

  void backward(Floats& x, Floats& dy) {
    tfk::gated_mlp_backward({}, {.dy = view(dy, {kSamples, 1}),
                                 .x = view(x, {kSamples, kFeatures}),
                                 .weight = half(weight.view(), false),
                                 .up_weight = half(weight.view(), true),
                                 .down_weight = down.view(),
                                 .activation = tfk::Pointwise::kSwiGlu,
                                 .z = view(z, {kSamples, kHidden}),
                                 .up = view(up, {kSamples, kHidden}),
                                 .dweight = half(weight.gradient_view(), false),
                                 .dup_weight = half(weight.gradient_view(), true),
                                 .ddown_weight = down.gradient_view(),
                                 .overwrite_z = true});
  }
};

// The mean squared error; `y` becomes the gradient of its half.
float error_and_gradient(const Floats& x, Floats& y) {
  float total = 0;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const float error = y[i] - x[i * kFeatures] * x[i * kFeatures + 1];
    total += error * error / kSamples;
    y[i] = error / kSamples;
  }
  return total;
}

}  // namespace

int main() {
  Floats x = random_values({kSamples, kFeatures}, 2), y(kSamples);
  GatedMlp mlp;
  for (Parameter* parameter : {&mlp.weight, &mlp.down}) {
    for (float& value : parameter->values) value *= 0.3f;
  }
  float first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    mlp.forward(x, y);
    last = error_and_gradient(x, y);
    if (step == 0) first = last;
    mlp.backward(x, y);
    mlp.weight.step();
    mlp.down.step();
  }
  std::printf("training: the error falls from %.3f to %.4f in %d steps\n", first, last, kSteps);
  return last < first / 50 ? 0 : 1;
}
