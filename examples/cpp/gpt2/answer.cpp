// SPDX-License-Identifier: MIT
#include "answer.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <utility>

namespace gpt2 {
namespace {

using nlohmann::json;

std::string random_digits() {
  std::random_device random;
  char digits[25];
  std::snprintf(digits, sizeof(digits), "%08x%08x%08x", random(), random(), random());
  return digits;
}

json choices(const std::string& text, const std::string& reason, json log_probs) {
  const json choice = {{"index", 0},
                       {"text", text},
                       {"logprobs", std::move(log_probs)},
                       {"finish_reason", reason.empty() ? json() : json(reason)}};
  return json::array({choice});
}

}  // namespace

std::string Text::take(const std::string& characters) {
  pending_ += characters;
  count_ += count_characters(characters);
  std::size_t certain = pending_.size();
  for (const std::string& stop : stops_) {
    const std::size_t place = pending_.find(stop);
    is_over_ = is_over_ || place != pending_.npos;
    certain = std::min(certain, place);
  }
  if (!is_over_) {
    for (const std::string& stop : stops_) {
      for (std::size_t length = std::min(stop.size() - 1, pending_.size()); length > 0; --length) {
        if (!pending_.ends_with(std::string_view(stop).substr(0, length))) continue;
        certain = std::min(certain, pending_.size() - length);
        break;
      }
    }
  }
  std::string text = pending_.substr(0, certain);
  pending_ = is_over_ ? "" : pending_.substr(certain);
  return text;
}

Answer::Answer(std::string model, std::int64_t prompt_tokens)
    : prompt_tokens(prompt_tokens),
      model_(std::move(model)),
      identity_("cmpl-" + random_digits()),
      created_(std::time(nullptr)) {}

json Answer::piece(const std::string& text, const std::string& reason, json log_probs) const {
  return wrap(choices(text, reason, std::move(log_probs)));
}

json Answer::whole(const std::string& text, const std::string& reason, json log_probs) const {
  json answer = piece(text, reason, std::move(log_probs));
  answer["usage"] = usage();
  return answer;
}

json Answer::end() const {
  json answer = wrap(json::array());
  answer["usage"] = usage();
  return answer;
}

json Answer::usage() const {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", new_tokens},
          {"total_tokens", prompt_tokens + new_tokens}};
}

json Answer::wrap(json choices) const {
  return {{"id", identity_},
          {"object", "text_completion"},
          {"created", created_},
          {"model", model_},
          {"choices", std::move(choices)}};
}

}  // namespace gpt2
