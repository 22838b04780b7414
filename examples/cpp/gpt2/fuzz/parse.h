// SPDX-License-Identifier: MIT
// Parsers of files whose bytes may be anything: they refuse a file by std::runtime_error, or read
// it. All else is a mistake of theirs.
#pragma once

#include <string>
#include <string_view>

namespace gpt2 {

// The file is of a format: safetensors, llmc, or tokenizer (vocab.json, a byte of 0, merges.txt).
// Returns whether it was read; throws std::logic_error where it was read wrongly, or there is no
// such format.
bool parse(const std::string& format, std::string_view file);

}  // namespace gpt2
