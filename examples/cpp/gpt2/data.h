// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "files.h"
#include "tokenizer.h"

namespace gpt2 {

// Rows of tokens and, for each token, the one that follows it.
struct Windows {
  std::vector<std::int32_t> inputs, targets;
};

// The tokens of a text file, or of a file of tokens of llm.c, and windows of them whose places
// follow from the seed and their number alone: who resumes needs no more than the number.
class Data {
 public:
  // Throws std::runtime_error where a token is outside of the vocabulary, or there are no more than
  // `length` tokens.
  Data(const Path& path, const Tokenizer& tokenizer, std::int64_t vocabulary, std::int64_t length,
       std::uint64_t seed);

  // The batch with this number, of so many windows.
  Windows batch(std::int64_t number, std::int64_t rows) const;

 private:
  std::vector<std::int32_t> tokens_;
  std::int64_t length_;
  std::uint64_t seed_;
};

}  // namespace gpt2
