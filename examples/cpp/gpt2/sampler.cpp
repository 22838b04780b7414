// SPDX-License-Identifier: MIT
#include "sampler.h"

#include <cstring>

namespace gpt2 {

using tfk::DType;

std::vector<std::int32_t> sample(std::span<float> logits, std::span<const Draw> draws) {
  static_assert(sizeof(tfk::SamplingParameters) == 8 * sizeof(float));
  const std::int64_t b = std::ssize(draws), vocabulary = std::ssize(logits) / b;
  const Tensor parameters(DType::kFloat32, {b, 8});
  const Tensor seeds(DType::kInt64, {b}), positions(DType::kInt64, {b}), tokens(DType::kInt64, {b});
  for (std::int64_t i = 0; i < b; ++i) {
    std::memcpy(&parameters.values<float>()[8 * i], &draws[i].parameters,
                sizeof(draws[i].parameters));
    seeds.values<std::int64_t>()[i] = draws[i].seed;
    positions.values<std::int64_t>()[i] = draws[i].position;
  }
  tfk::sample_logits({}, {.logits = view_of(logits.data(), DType::kFloat32, {b, vocabulary}),
                          .parameters = parameters.view(),
                          .seed = seeds.view(),
                          .position = positions.view(),
                          .tokens = tokens.view()});
  const std::span drawn = tokens.values<std::int64_t>();
  return std::vector<std::int32_t>(drawn.begin(), drawn.end());
}

}  // namespace gpt2
