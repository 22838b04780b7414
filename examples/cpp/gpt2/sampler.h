// SPDX-License-Identifier: MIT
// The choice of the next tokens. Requests and `generate` take the same numbers for it.
#pragma once

#include <transformer_kernels/decode/sample_logits.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tensor.h"

namespace gpt2 {

// A number that a user may give.
struct SamplingField {
  const char* name;
  float tfk::SamplingParameters::*parameter;
  const char* wanted;  // what a number that fits is
  bool (*fits)(double);
  const char* help;
};
inline constexpr SamplingField kSamplingFields[] = {
    {"temperature", &tfk::SamplingParameters::temperature, "a number from 0 to 2",
     [](double x) { return x >= 0 && x <= 2; }, "0 takes the likeliest token, without it 1"},
    {"top_k", &tfk::SamplingParameters::top_k,
     "a whole number greater than or equal to 1 and below 2^31",
     [](double x) { return x >= 1 && x < 0x1p31 && x == std::floor(x); },
     "Keeps so many of the likeliest tokens"},
    {"top_p", &tfk::SamplingParameters::top_p, "a number greater than 0 and at most 1",
     [](double x) { return x > 0 && x <= 1; },
     "Keeps the likeliest tokens that have this part of all probability"},
    {"min_p", &tfk::SamplingParameters::min_p, "a number from 0 to 1",
     [](double x) { return x >= 0 && x <= 1; },
     "Keeps tokens that are at least this part as likely as the likeliest one"},
    {"presence_penalty", &tfk::SamplingParameters::presence_penalty, "a number from -2 to 2",
     [](double x) { return x >= -2 && x <= 2; },
     "Lowers the logit of each token behind the prompt"},
    {"frequency_penalty", &tfk::SamplingParameters::frequency_penalty, "a number from -2 to 2",
     [](double x) { return x >= -2 && x <= 2; }, "As above, once for each time that it is there"},
    {"repetition_penalty", &tfk::SamplingParameters::repetition_penalty,
     "a number from 0.01 to 100", [](double x) { return x >= 0.01 && x <= 100; },
     "Divides positive logits of tokens so far, the prompt's too, and multiplies negative ones"},
};

struct Bias {
  std::int32_t token;
  float by;
};

// How the tokens of a text are drawn.
struct Sampling {
  tfk::SamplingParameters parameters;
  std::int64_t seed = 0;
  std::vector<Bias> bias;                 // sums that logits get first
  std::optional<std::int64_t> likeliest;  // so many are told with their log-probabilities
};

// The next token of a text, whose first tokens are the prompt.
struct Draw {
  const Sampling& sampling;
  std::span<const std::int32_t> text;
  std::int64_t prompt_length;
};

struct Drawn {
  struct Candidate {
    std::int32_t token;
    float log_prob;  // the model's own; 0 where it is not asked for
  };
  Candidate chosen;
  std::vector<Candidate> likeliest;
};

// One of each draw, of logits (B, V). It depends on its row and its draw alone.
std::vector<Drawn> sample(std::span<float> logits, std::span<const Draw> draws);

}  // namespace gpt2
