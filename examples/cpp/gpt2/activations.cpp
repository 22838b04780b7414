// SPDX-License-Identifier: MIT
#include "activations.h"

#include <algorithm>

namespace gpt2 {

Tensor positions_of(const Batch& batch) {
  std::vector<std::int32_t> positions(batch.sequences * batch.tokens);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int32_t>(i % batch.tokens);
  }
  Tensor tensor = batch.numbers(1);
  write(tensor.view(), positions.data());
  return tensor;
}

Tensor bias_of_head(const Batch& batch, std::int64_t rows, std::int64_t vocabulary) {
  constexpr float kNever = -1e30f;  // its exponential is 0 beside any logit's
  if (rows == vocabulary) return {};
  std::vector<float> bias(rows);
  std::fill(bias.begin() + vocabulary, bias.end(), kNever);
  Tensor tensor(tfk::DType::kFloat32, {rows}, batch.device);
  write(tensor.view(), bias.data());
  return tensor;
}

std::vector<Activations> activations_of(const Batch& batch, const Config& config,
                                        Recompute recompute) {
  const std::int64_t c = config.channels;
  const std::int64_t kept = recompute == Recompute::kLayer ? 1 : config.layers;
  std::vector<Activations> activations;
  for (std::int64_t i = 0; i < kept; ++i) {
    activations.push_back(
        {.sum_1 = batch.stream(c),
         .norm_1 = batch.matrix(c),
         .mean_1 = batch.statistic(),
         .rstd_1 = batch.statistic(),
         .qkv = batch.matrix(3 * c),
         .heads = batch.matrix(c),
         .lse = {tfk::DType::kFloat32, {batch.sequences, config.heads, batch.tokens}, batch.device},
         .projected = batch.matrix(c),
         .norm_2 = batch.matrix(c),
         .mean_2 = batch.statistic(),
         .rstd_2 = batch.statistic(),
         .z = batch.matrix(4 * c),
         .h = recompute == Recompute::kActivation ? Tensor() : batch.matrix(4 * c)});
  }
  return activations;
}

}  // namespace gpt2
