// SPDX-License-Identifier: MIT
// A Llama of one layer counts: each step takes a token through the model and gives the next. The
// layer's matrices are zero, and row t + 1 of the head is the embedding of token t.
#include <transformer_kernels/decode/step.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>

namespace tfk = transformer_kernels;

constexpr int kSize = 8;  // hidden units, those between, head dim, vocabulary, positions

tfk::TensorView view(float* x, std::initializer_list<std::int64_t> shape = {kSize, kSize}) {
  return tfk::TensorView::contiguous(x, tfk::DType::kFloat32, {}, shape);
}

int main() {
  std::array<float, kSize * kSize> embedding{}, head{}, zero{}, ones{};
  ones.fill(1);
  for (int t = 0; t < kSize; ++t) embedding[t * kSize + t] = head[(t + 1) % kSize * kSize + t] = 1;
  const tfk::TensorView norm = view(ones.data(), {kSize});
  const tfk::TensorView cosines = view(ones.data(), {kSize, kSize / 2});  // no rotation
  const tfk::TensorView sines = view(zero.data(), {kSize, kSize / 2});
  const tfk::StepModel model{kSize, 1, 1, kSize, kSize, kSize, cosines, sines};
  const auto plan = std::make_shared<tfk::StepPlan>(tfk::Context{}, model);
  const tfk::StepWeight none{view(zero.data())};
  plan->add_layer({}, {norm, norm, none, none, none, none, none, none, none});
  plan->finish({}, {view(embedding.data())}, norm, {view(head.data())});

  tfk::StepSession session(plan, kSize);  // keys and values of the sequence
  std::int64_t token = 2;
  const auto here = tfk::TensorView::contiguous(&token, tfk::DType::kInt64, {}, {1});
  for (int i = 0; i < 3; ++i) tfk::decode_step({}, session, {.tokens = here, .best = here});
  std::printf("token %lld after %lld steps\n", static_cast<long long>(token),
              static_cast<long long>(session.length()));
  return token == 5 ? 0 : 1;
}
