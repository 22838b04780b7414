// SPDX-License-Identifier: MIT
// The first character of a text in UTF-8, and what GPT-2's splitting of words asks about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpt2 {

enum class CharacterKind : std::uint8_t { kLetter, kNumber, kSpace, kOther };

struct Character {
  CharacterKind kind;
  std::size_t bytes;
};

// Takes bytes that may end inside a character, and gives whole characters back; what is no UTF-8
// becomes U+FFFD.
class CharacterStream {
 public:
  std::string add(std::string_view bytes);
  std::string finish();  // what is left

 private:
  std::string take(bool more);

  std::string pending_;
};

// The number of characters in UTF-8 of nothing else.
std::int64_t count_characters(std::string_view text);

// A byte that begins no character of UTF-8 is one of kOther. `text` is not empty.
Character character_at(std::string_view text);

}  // namespace gpt2
