// SPDX-License-Identifier: MIT
#include "tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <queue>
#include <stdexcept>
#include <tuple>

#include "files.h"
#include "unicode.h"

namespace gpt2 {
namespace {

constexpr int kBytes = 256;
constexpr const char* kVocabulary = "vocab.json";
constexpr const char* kMerges = "merges.txt";
constexpr const char* kEndOfText = "<|endoftext|>";

// The files write each byte as a character that is visible: itself, or one from U+0100 on.
std::string visible(int byte) {
  const auto shows = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int code = byte;
  if (!shows(byte)) {
    code = kBytes;
    for (int before = 0; before < byte; ++before) code += shows(before) ? 0 : 1;
  }
  if (code < 128) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

// The bytes that visible characters stand for; nothing where one stands for none.
std::optional<std::string> bytes_behind(std::string_view text) {
  static const auto* const kByteOf = [] {
    auto* table = new std::unordered_map<std::string, char>;
    for (int byte = 0; byte < kBytes; ++byte) (*table)[visible(byte)] = static_cast<char>(byte);
    return table;
  }();
  std::string bytes;
  while (!text.empty()) {
    const std::size_t length = std::min(character_at(text).bytes, text.size());
    const auto found = kByteOf->find(std::string(text.substr(0, length)));
    if (found == kByteOf->end()) return std::nullopt;
    bytes += found->second;
    text.remove_prefix(length);
  }
  return bytes;
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw std::runtime_error(path.string() + ": " + what);
}

}  // namespace

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  const auto run_of = [&](std::size_t from, CharacterKind kind) {
    while (from < text.size() && character_at(text.substr(from)).kind == kind) {
      from += character_at(text.substr(from)).bytes;
    }
    return from;
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const std::string_view rest = text.substr(begin);
    std::size_t end = begin;
    for (const std::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (rest.starts_with(suffix)) end = begin + suffix.size();
    }
    if (end == begin) {
      const std::size_t first = begin + (rest[0] == ' ' ? 1 : 0);
      const CharacterKind kind =
          first < text.size() ? character_at(text.substr(first)).kind : CharacterKind::kSpace;
      if (kind != CharacterKind::kSpace) {
        end = run_of(first, kind);
      } else {
        end = run_of(begin, CharacterKind::kSpace);
        // The last of several spaces belongs to the word behind it.
        std::size_t last = begin;
        for (std::size_t next = begin; next < end;) {
          last = next;
          next += character_at(text.substr(next)).bytes;
        }
        if (end < text.size() && last > begin) end = last;
      }
    }
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

Tokenizer::Tokenizer() {
  for (int byte = 0; byte < kBytes; ++byte) {
    bytes_of_.emplace_back(1, static_cast<char>(byte));
    token_of_.emplace(bytes_of_.back(), byte);
  }
}

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
  const auto vocabulary = directory / kVocabulary, merges = directory / kMerges;
  Tokenizer tokenizer;
  if (directory.empty()) return tokenizer;
  if (!std::filesystem::exists(vocabulary) && !std::filesystem::exists(merges)) return tokenizer;
  tokenizer.read_vocabulary(vocabulary);
  tokenizer.read_merges(merges);
  return tokenizer;
}

Tokenizer Tokenizer::load_for(std::int64_t vocabulary, const std::filesystem::path& named,
                              const std::filesystem::path& model) {
  Tokenizer tokenizer = load(tokenizer_folder(named, model));
  if (tokenizer.vocabulary() < vocabulary) {
    throw std::runtime_error("the model has " + std::to_string(vocabulary) +
                             " tokens, the tokenizer " + std::to_string(tokenizer.vocabulary()) +
                             ": --tokenizer names the folder of its files");
  }
  return tokenizer;
}

void Tokenizer::read_vocabulary(const std::filesystem::path& path) {
  std::vector<bool> known;
  try {
    const auto parsed = nlohmann::json::parse(read_text(path));
    const auto& words = parsed.get_ref<const nlohmann::json::object_t&>();
    bytes_of_.assign(words.size(), "");
    known.assign(words.size(), false);
    token_of_.clear();
    for (const auto& [word, number] : words) {
      const auto token = number.get<std::int64_t>();
      if (!number.is_number_integer() || token < 0 || token >= std::ssize(known) || known[token]) {
        throw std::runtime_error("the token " + word + " has the number " + number.dump());
      }
      known[token] = true;
      // A word of other characters is a special token, which no text makes.
      const std::optional<std::string> bytes = bytes_behind(word);
      bytes_of_[token] = bytes.value_or(word);
      if (word == kEndOfText) {
        end_of_text_ = static_cast<std::int32_t>(token);
      } else if (bytes.has_value()) {
        token_of_.emplace(*bytes, static_cast<std::int32_t>(token));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    fail(path, std::string("is no vocabulary: ") + error.what());
  } catch (const std::runtime_error& error) {
    fail(path, error.what());
  }
  for (int byte = 0; byte < kBytes; ++byte) {
    if (!token_of_.contains(std::string(1, static_cast<char>(byte)))) {
      fail(path, "has no token for the byte " + std::to_string(byte));
    }
  }
}

void Tokenizer::read_merges(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  std::int32_t rank = 0;
  for (std::size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin = end + 1;
    if (line.empty() || line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    const auto token_named = [&](std::string_view word) {
      const std::optional<std::string> bytes = bytes_behind(word);
      const auto found = token_of_.find(bytes.value_or(""));
      if (space == line.npos || found == token_of_.end()) {
        fail(path, "line " + std::to_string(number) + " names no two tokens of vocab.json");
      }
      return found->second;
    };
    const std::int32_t left = token_named(line.substr(0, space));
    const std::int32_t right = token_named(line.substr(std::min(space + 1, line.size())));
    const auto merged = token_of_.find(bytes_of_[left] + bytes_of_[right]);
    if (merged == token_of_.end()) {
      fail(path, "line " + std::to_string(number) + " makes no token of vocab.json");
    }
    merges_.try_emplace(pair_of(left, right), Merge{rank++, merged->second});
  }
}

// Joins the pair of the lowest rank, the first of equal ones, until no pair has one.
void Tokenizer::encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const {
  struct Node {
    std::int32_t token;
    std::size_t before, behind;
  };
  using Candidate = std::tuple<std::int32_t, std::size_t, std::uint64_t>;  // rank, place, pair
  std::vector<Node> nodes;
  for (std::size_t i = 0; i < word.size(); ++i) {
    nodes.push_back({token_of_.at(std::string(1, word[i])), i - 1, i + 1});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto propose = [&](std::size_t left) {
    if (left >= nodes.size() || nodes[left].behind >= nodes.size()) return;
    const std::uint64_t pair = pair_of(nodes[left].token, nodes[nodes[left].behind].token);
    const auto found = merges_.find(pair);
    if (found != merges_.end()) candidates.emplace(found->second.rank, left, pair);
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) propose(i);
  constexpr std::int32_t kGone = -1;
  while (!candidates.empty()) {
    const auto [rank, left, pair] = candidates.top();
    candidates.pop();
    const std::size_t right = nodes[left].behind;
    const bool stale = nodes[left].token == kGone || right >= nodes.size() ||
                       pair_of(nodes[left].token, nodes[right].token) != pair;
    if (stale) continue;
    nodes[left].token = merges_.at(pair).token;
    nodes[left].behind = nodes[right].behind;
    nodes[right].token = kGone;
    if (nodes[left].behind < nodes.size()) nodes[nodes[left].behind].before = left;
    propose(nodes[left].before);
    propose(left);
  }
  for (const Node& node : nodes) {
    if (node.token != kGone) tokens.push_back(node.token);
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  for (const std::string_view word : words_of(text)) encode_word(word, tokens);
  return tokens;
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= vocabulary()) {
      throw std::runtime_error("the vocabulary has no token " + std::to_string(token));
    }
    text += bytes_of_[token];
  }
  return text;
}

std::filesystem::path tokenizer_folder(const std::filesystem::path& named,
                                       const std::filesystem::path& model) {
  if (!named.empty() || model.empty()) return named;
  const auto folder = std::filesystem::is_directory(model) ? model : model.parent_path();
  return folder.empty() ? "." : folder;
}

void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (from.empty()) return;
  for (const char* name : {kVocabulary, kMerges}) {
    if (std::filesystem::exists(from / name)) write_text(to / name, read_text(from / name));
  }
}

}  // namespace gpt2
