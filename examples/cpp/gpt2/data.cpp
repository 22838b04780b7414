// SPDX-License-Identifier: MIT
#include "data.h"

#include <algorithm>
#include <stdexcept>

#include "llmc.h"

namespace gpt2 {
namespace {

// SplitMix64 (Steele et al. 2014): the number of place `index` in the sequence of a seed.
std::uint64_t random_number(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

}  // namespace

Data::Data(const Path& path, const Tokenizer& tokenizer, std::int64_t vocabulary,
           std::int64_t length, std::uint64_t seed)
    : tokens_(is_llmc_tokens(path) ? read_llmc_tokens(path) : tokenizer.encode(read_text(path))),
      length_(length),
      seed_(seed) {
  if (std::ssize(tokens_) <= length) {
    throw std::runtime_error(path.string() + ": has " + std::to_string(tokens_.size()) +
                             " tokens, a window of " + std::to_string(length) + " needs one more");
  }
  const std::int32_t largest = *std::max_element(tokens_.begin(), tokens_.end());
  if (largest >= vocabulary) {
    throw std::runtime_error(path.string() + ": has the token " + std::to_string(largest) +
                             ", the model's vocabulary ends before " + std::to_string(vocabulary));
  }
}

Windows Data::batch(std::int64_t number, std::int64_t rows) const {
  Windows windows;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint64_t place = random_number(seed_, number * rows + row);
    const auto first = tokens_.begin() + place % (tokens_.size() - length_);
    windows.inputs.insert(windows.inputs.end(), first, first + length_);
    windows.targets.insert(windows.targets.end(), first + 1, first + 1 + length_);
  }
  return windows;
}

}  // namespace gpt2
