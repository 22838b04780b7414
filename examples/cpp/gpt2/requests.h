// SPDX-License-Identifier: MIT
// The requests of the server's clients: their fields are checked, and refusals name what is wrong.
#pragma once

#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sampler.h"

namespace gpt2 {

// A request is not answered. The status is HTTP's, the message for people, `param` the field that
// is wrong, the code for programs.
class Refusal : public std::exception {
 public:
  Refusal(int status, std::string message, std::string param = "", std::string code = "")
      : status_(status),
        message_(std::move(message)),
        param_(std::move(param)),
        code_(std::move(code)) {}

  int status() const { return status_; }
  nlohmann::json body() const;  // in OpenAI's shape
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int status_;
  std::string message_, param_, code_;
};

// The fields of a completion.
struct Asked {
  std::variant<std::string, std::vector<std::int32_t>> prompt;
  std::optional<std::string> model;
  std::optional<std::int64_t> max_tokens;
  Sampling sampling;  // by a seed of chance where none is given
  std::vector<std::string> stop;
  bool stream = false, include_usage = false;
};

// Throws Refusal, which names the field that is wrong. So is one that is unknown, so that nothing
// that a client asks for is left out silently; one that is null is one that is not given.
Asked read_asked(const std::string& body);

// A text for JSON; bytes that are no UTF-8 become U+FFFD.
std::string text_of(const nlohmann::json& json);

}  // namespace gpt2
