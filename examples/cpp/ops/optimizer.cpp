// SPDX-License-Identifier: MIT
// A step of AdamW: the first one moves each weight by lr, against its gradient's sign.
#include <transformer_kernels/optimizer/adamw.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

namespace tfk = transformer_kernels;

template <class T, std::size_t N>
tfk::TensorView view(std::array<T, N>& x, tfk::DType dtype,
                     std::initializer_list<std::int64_t> shape) {
  return tfk::TensorView::contiguous(x.data(), dtype, {}, shape);
}

int main() {
  std::array<float, 2> weight{1, 1}, gradient{0.3f, -7}, first{}, second{};
  std::array<float, 1> steps{};
  constexpr tfk::DType kFloat = tfk::DType::kFloat32;
  const std::array tensors{tfk::OptimizerTensor{.param = view(weight, kFloat, {2}),
                                                .grad = view(gradient, kFloat, {2}),
                                                .exp_avg = view(first, kFloat, {2}),
                                                .exp_avg_sq = view(second, kFloat, {2}),
                                                .step = view(steps, kFloat, {})}};
  const std::array groups{tfk::AdamWGroup{.lr = 0.1, .weight_decay = 0}};
  tfk::adamw_step({}, {.tensors = tensors, .groups = groups});
  std::printf("step %.0f: %.3f %.3f\n", steps[0], weight[0], weight[1]);
  return std::abs(weight[0] - 0.9f) < 1e-5f && std::abs(weight[1] - 1.1f) < 1e-5f ? 0 : 1;
}
