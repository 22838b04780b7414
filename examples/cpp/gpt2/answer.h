// SPDX-License-Identifier: MIT
// The answers of OpenAI's API, whole and in pieces, and the text in them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "unicode.h"

namespace gpt2 {

// Text of a model up to the first of some strings. What comes out is whole characters; what may
// begin such a string is kept back until it does not.
class Text {
 public:
  explicit Text(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  std::string add(std::string_view bytes) { return take(characters_.add(bytes)); }
  std::string finish() { return take(characters_.finish()) + std::move(pending_); }
  bool is_over() const { return is_over_; }      // one of the strings came
  std::int64_t count() const { return count_; }  // characters that came

 private:
  std::string take(const std::string& characters);

  std::vector<std::string> stops_;
  CharacterStream characters_;
  std::string pending_;
  bool is_over_ = false;
  std::int64_t count_ = 0;
};

struct Answer {
  Answer(std::string model, std::int64_t prompt_tokens);

  // The last piece of a stream has a reason, others an empty one. `log_probs` may be null.
  nlohmann::json piece(const std::string& text, const std::string& reason,
                       nlohmann::json log_probs) const;
  nlohmann::json whole(const std::string& text, const std::string& reason,
                       nlohmann::json log_probs) const;
  nlohmann::json end() const;  // a part of a stream that only says what was used

  std::int64_t prompt_tokens, new_tokens = 0;

 private:
  nlohmann::json wrap(nlohmann::json choices) const;
  nlohmann::json usage() const;

  std::string model_, identity_;
  std::int64_t created_;
};

}  // namespace gpt2
