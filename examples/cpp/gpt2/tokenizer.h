// SPDX-License-Identifier: MIT
// GPT-2's byte-level byte pair encoding (Radford et al. 2019), from the vocabulary files that
// Hugging Face and OpenAI give out; where there are none, each byte is a token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gpt2 {

// The pieces of a text that byte pairs do not cross: words, numbers and marks with the space
// before them, and whitespace. Bytes that are no UTF-8 are marks.
std::vector<std::string_view> words_of(std::string_view text);

class Tokenizer {
 public:
  // Reads vocab.json and merges.txt; without both, or without a directory, tokens are bytes. Throws
  // std::runtime_error where one is missing or they do not fit each other.
  static Tokenizer load(const std::filesystem::path& directory);
  // That of a model, by tokenizer_folder(); it has no fewer tokens, or this throws.
  static Tokenizer load_for(std::int64_t vocabulary, const std::filesystem::path& named,
                            const std::filesystem::path& model);

  std::vector<std::int32_t> encode(std::string_view text) const;  // special tokens are text, too
  // The bytes of the tokens, which may end inside a character. Throws where one is unknown.
  std::string decode(std::span<const std::int32_t> tokens) const;
  std::int64_t vocabulary() const { return static_cast<std::int64_t>(bytes_of_.size()); }
  std::optional<std::int32_t> end_of_text() const { return end_of_text_; }

 private:
  struct Merge {
    std::int32_t rank, token;
  };
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }

  Tokenizer();
  void read_vocabulary(const std::filesystem::path& path);
  void read_merges(const std::filesystem::path& path);
  void encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const;

  std::vector<std::string> bytes_of_;  // of each token
  std::unordered_map<std::string, std::int32_t> token_of_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // of a pair of tokens
  std::optional<std::int32_t> end_of_text_;
};

// The folder that holds a tokenizer's files: that which is named, or else the model's. Empty where
// there is neither.
std::filesystem::path tokenizer_folder(const std::filesystem::path& named,
                                       const std::filesystem::path& model);

// Copies the files, if there are any, so that a model has its tokenizer beside it.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace gpt2
