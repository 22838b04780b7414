// SPDX-License-Identifier: MIT
#include "sampler.h"

#include <algorithm>
#include <cstring>

namespace gpt2 {
namespace {

using tfk::DType;

bool has_penalties(const Draw& draw) {
  const tfk::SamplingParameters& by = draw.sampling.parameters;
  return by.repetition_penalty != 1 || by.presence_penalty != 0 || by.frequency_penalty != 0;
}

// The texts of those with penalties, (B, the longest); there is no tensor where nobody has any.
Tensor previous_of(std::span<const Draw> draws) {
  std::int64_t longest = 0;
  for (const Draw& draw : draws) {
    if (has_penalties(draw)) longest = std::max(longest, std::ssize(draw.text));
  }
  if (longest == 0) return {};
  Tensor previous(DType::kInt64, {std::ssize(draws), longest});
  const std::span tokens = previous.values<std::int64_t>();
  std::ranges::fill(tokens, -1);  // no token
  for (std::size_t i = 0; i < draws.size(); ++i) {
    if (has_penalties(draws[i])) {
      std::ranges::copy(draws[i].text, tokens.subspan(i * longest).begin());
    }
  }
  return previous;
}

// (B, vocabulary); there is no tensor where nobody has a bias.
Tensor bias_of(std::span<const Draw> draws, std::int64_t vocabulary) {
  const auto has_none = [](const Draw& draw) { return draw.sampling.bias.empty(); };
  if (std::ranges::all_of(draws, has_none)) return {};
  Tensor bias(DType::kFloat32, {std::ssize(draws), vocabulary});
  for (std::size_t i = 0; i < draws.size(); ++i) {
    for (const auto& [token, by] : draws[i].sampling.bias) {
      bias.values<float>()[i * vocabulary + token] = by;
    }
  }
  return bias;
}

// The log-probabilities of those who ask for them.
class Told {
 public:
  Told(std::span<const Draw> draws, std::int64_t vocabulary) {
    std::int64_t most = -1;
    for (const Draw& draw : draws) most = std::max(most, draw.sampling.likeliest.value_or(-1));
    const std::int64_t b = std::ssize(draws);
    top_ = std::clamp<std::int64_t>(most, 0, vocabulary);
    if (most >= 0) log_probs = Tensor(DType::kFloat32, {b});
    if (top_ > 0) top_tokens = Tensor(DType::kInt64, {b, top_});
    if (top_ > 0) top_log_probs = Tensor(DType::kFloat32, {b, top_});
  }

  Drawn of(std::int64_t row, std::int64_t token, std::optional<std::int64_t> likeliest) const {
    Drawn drawn = {.chosen = {static_cast<std::int32_t>(token), 0}, .likeliest = {}};
    if (!likeliest.has_value()) return drawn;
    drawn.chosen.log_prob = log_probs.values<float>()[row];
    for (std::int64_t i = row * top_; i < row * top_ + std::min(top_, *likeliest); ++i) {
      const auto candidate = static_cast<std::int32_t>(top_tokens.values<std::int64_t>()[i]);
      if (candidate < 0) break;  // the logits have NaN
      drawn.likeliest.push_back({candidate, top_log_probs.values<float>()[i]});
    }
    return drawn;
  }

  Tensor log_probs, top_tokens, top_log_probs;  // (B), (B, N), (B, N); none where nobody asks

 private:
  std::int64_t top_;
};

}  // namespace

std::vector<Drawn> sample(std::span<float> logits, std::span<const Draw> draws) {
  static_assert(sizeof(tfk::SamplingParameters) == 8 * sizeof(float));
  const std::int64_t b = std::ssize(draws), vocabulary = std::ssize(logits) / b;
  const Tensor parameters(DType::kFloat32, {b, 8});
  const Tensor seeds(DType::kInt64, {b}), positions(DType::kInt64, {b});
  const Tensor prompt_lengths(DType::kInt64, {b}), tokens(DType::kInt64, {b});
  for (std::int64_t i = 0; i < b; ++i) {
    const Sampling& sampling = draws[i].sampling;
    std::memcpy(&parameters.values<float>()[8 * i], &sampling.parameters,
                sizeof(sampling.parameters));
    seeds.values<std::int64_t>()[i] = sampling.seed;
    positions.values<std::int64_t>()[i] = std::ssize(draws[i].text);
    prompt_lengths.values<std::int64_t>()[i] = draws[i].prompt_length;
  }
  const Tensor previous = previous_of(draws), bias = bias_of(draws, vocabulary);
  const Told told(draws, vocabulary);
  tfk::sample_logits({}, {.logits = view_of(logits.data(), DType::kFloat32, {b, vocabulary}),
                          .parameters = parameters.view(),
                          .seed = seeds.view(),
                          .position = positions.view(),
                          .previous = previous.view(),
                          .prompt_lengths = prompt_lengths.view(),
                          .bias = bias.view(),
                          .tokens = tokens.view(),
                          .log_probs = told.log_probs.view(),
                          .top_tokens = told.top_tokens.view(),
                          .top_log_probs = told.top_log_probs.view()});
  std::vector<Drawn> drawn;
  for (std::int64_t i = 0; i < b; ++i) {
    const std::int64_t token = tokens.values<std::int64_t>()[i];
    drawn.push_back(told.of(i, token, draws[i].sampling.likeliest));
  }
  return drawn;
}

}  // namespace gpt2
