// SPDX-License-Identifier: MIT
// The log-probabilities of a completion's tokens, in OpenAI's shape.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>

#include "sampler.h"
#include "tokenizer.h"

namespace gpt2 {

class LogProbs {
 public:
  // The tokenizer outlives it.
  explicit LogProbs(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // `offset` is the number of characters before the token.
  void add(const Drawn& drawn, std::int64_t offset) { waiting_.push_back({offset, drawn}); }

  // Takes out the tokens that begin in the first so many characters: so a token goes with the piece
  // of a stream that has its beginning, and one that was cut off with none.
  nlohmann::json take(std::int64_t characters);

 private:
  struct Entry {
    std::int64_t offset;
    Drawn drawn;
  };

  std::string name_of(std::int32_t token) const;

  const Tokenizer& tokenizer_;
  std::deque<Entry> waiting_;
};

}  // namespace gpt2
