// SPDX-License-Identifier: MIT
// Options that several commands have.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "model.h"
#include "tokenizer.h"

namespace gpt2 {

// A function that adds an option whose help says its usual value.
inline auto numbers_of(CLI::App& command) {
  return [&command](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->capture_default_str();
  };
}

// An option that takes a name. `names` has to live as long as the command.
template <class Value>
void add_choice(CLI::App& command, const char* option, const std::map<std::string, Value>& names,
                Value& value, const char* help) {
  const auto choose = [&names, &value](const std::string& name) { value = names.at(name); };
  command.add_option_function<std::string>(option, choose, help)->check(CLI::IsMember(names));
}

void add_tokenizer(CLI::App& command, Path& folder);
void add_device(CLI::App& command, tfk::DeviceType& device);

// The model that a command lets write.
struct ModelOptions {
  Path path, tokenizer;
  bool bfloat16 = false;
  tfk::DeviceType device = tfk::DeviceType::kCpu;

  Gpt2 load() const {
    return Gpt2::load(path, bfloat16 ? tfk::DType::kBFloat16 : tfk::DType::kFloat32,
                      Device::of(device));
  }
  Tokenizer load_tokenizer(const Gpt2& of) const {
    return Tokenizer::load_for(of.config().vocabulary, tokenizer, path);
  }
};
void add_model(CLI::App& command, ModelOptions& options);

}  // namespace gpt2
