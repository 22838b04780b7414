// SPDX-License-Identifier: MIT
// Options that several commands have.
#pragma once

#include <CLI/CLI.hpp>

#include "model.h"
#include "tokenizer.h"

namespace gpt2 {

// A function that adds an option whose help says its usual value.
inline auto numbers_of(CLI::App& command) {
  return [&command](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->capture_default_str();
  };
}

void add_tokenizer(CLI::App& command, Path& folder);

// The model that a command lets write.
struct ModelOptions {
  Path path, tokenizer;
  bool bfloat16 = false;

  Precision precision() const { return bfloat16 ? Precision::kBFloat16 : Precision::kFloat32; }
  Gpt2 load() const { return Gpt2::load(path, precision()); }
  Tokenizer load_tokenizer(const Gpt2& of) const {
    return Tokenizer::load_for(of.config().vocabulary, tokenizer, path);
  }
};
void add_model(CLI::App& command, ModelOptions& options);

}  // namespace gpt2
