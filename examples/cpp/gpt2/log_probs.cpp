// SPDX-License-Identifier: MIT
#include "log_probs.h"

#include <cstdio>

#include "unicode.h"

namespace gpt2 {

using nlohmann::json;

json LogProbs::take(std::int64_t characters) {
  json tokens = json::array(), chosen = tokens, likeliest = tokens, offsets = tokens;
  for (; !waiting_.empty() && waiting_.front().offset < characters; waiting_.pop_front()) {
    const auto& [offset, drawn] = waiting_.front();
    json each = json::object();
    for (const auto& [token, log_prob] : drawn.likeliest) each[name_of(token)] = log_prob;
    each[name_of(drawn.chosen.token)] = drawn.chosen.log_prob;
    tokens.push_back(name_of(drawn.chosen.token));
    chosen.push_back(drawn.chosen.log_prob);
    likeliest.push_back(std::move(each));
    offsets.push_back(offset);
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(chosen)},
          {"top_logprobs", std::move(likeliest)},
          {"text_offset", std::move(offsets)}};
}

// The token's text; its bytes where they are no whole characters, so that no two have one name.
std::string LogProbs::name_of(std::int32_t token) const {
  std::string text = tokenizer_.decode({&token, 1});
  CharacterStream stream;
  if (stream.add(text) + stream.finish() == text) return text;
  std::string name = "bytes:";
  for (const unsigned char byte : text) {
    char digits[5];
    std::snprintf(digits, sizeof(digits), "\\x%02x", byte);
    name += digits;
  }
  return name;
}

}  // namespace gpt2
