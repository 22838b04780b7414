// SPDX-License-Identifier: MIT
#include "config.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace gpt2 {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostPerSize = 1 << 24;
constexpr std::int64_t kMostVocabulary = 1 << 20;  // that sampling takes
constexpr std::int64_t kMostHeadDim = 256;         // that attention takes
constexpr std::int64_t kMostElements = std::int64_t{1} << 36;

void check_range(const char* name, std::int64_t value, std::int64_t most) {
  if (value < 1 || value > most) {
    throw std::runtime_error(std::string("the configuration has ") + name + " = " +
                             std::to_string(value) + ", expected 1 to " + std::to_string(most));
  }
}

// Options of transformers that would make another model, and what they must be if they are there.
void check_same_model(const json& parsed, std::int64_t channels) {
  const std::map<std::string, std::set<json>> expected = {
      {"model_type", {"gpt2"}},
      {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}},
      {"n_inner", {nullptr, 4 * channels}},
      {"scale_attn_weights", {true}},
      {"scale_attn_by_inverse_layer_idx", {false}},
      {"add_cross_attention", {false}},
      {"tie_word_embeddings", {true}}};
  for (const auto& [name, values] : expected) {
    if (parsed.contains(name) && !values.contains(parsed[name])) {
      throw std::runtime_error("config.json: " + name + " is " + parsed[name].dump() +
                               ", which this program does not run");
    }
  }
}

}  // namespace

std::int64_t parameter_count(const Config& config) {
  const std::int64_t c = config.channels;
  return (config.vocabulary + config.positions) * c + config.layers * (12 * c * c + 13 * c) + 2 * c;
}

void check(const Config& config) {
  check_range("vocab_size", config.vocabulary, kMostVocabulary);
  check_range("n_positions", config.positions, kMostPerSize);
  check_range("n_embd", config.channels, kMostPerSize);
  check_range("n_layer", config.layers, kMostPerSize);
  check_range("n_head", config.heads, config.channels);
  if (config.channels % config.heads != 0) {
    throw std::runtime_error("the configuration has n_embd = " + std::to_string(config.channels) +
                             ", which n_head = " + std::to_string(config.heads) +
                             " does not divide");
  }
  check_range("n_embd / n_head", config.head_dim(), kMostHeadDim);
  const std::int64_t rows = config.vocabulary + config.positions;
  if (rows > kMostElements / config.channels ||
      config.layers > kMostElements / (12 * config.channels) / config.channels) {
    throw std::runtime_error("the configuration has too many parameters");
  }
  if (!(config.eps > 0 && config.eps < 1)) {
    throw std::runtime_error("the configuration has layer_norm_epsilon = " +
                             std::to_string(config.eps));
  }
}

Config parse_config(const std::string& text) {
  Config config;
  try {
    const json parsed = json::parse(text);
    const auto size = [&](const char* name) {
      const json& value = parsed.at(name);
      if (!value.is_number_integer()) throw std::runtime_error(name + (" is " + value.dump()));
      return value.get<std::int64_t>();
    };
    config = {.vocabulary = size("vocab_size"),
              .positions = size("n_positions"),
              .channels = size("n_embd"),
              .layers = size("n_layer"),
              .heads = size("n_head"),
              .eps = parsed.value("layer_norm_epsilon", 1e-5)};
    check(config);
    check_same_model(parsed, config.channels);
  } catch (const json::exception& error) {
    throw std::runtime_error(std::string("no configuration of a GPT-2: ") + error.what());
  }
  return config;
}

std::string text_of(const Config& config) {
  const json parsed = {{"model_type", "gpt2"},
                       {"architectures", {"GPT2LMHeadModel"}},
                       {"activation_function", "gelu_new"},
                       {"vocab_size", config.vocabulary},
                       {"n_positions", config.positions},
                       {"n_embd", config.channels},
                       {"n_layer", config.layers},
                       {"n_head", config.heads},
                       {"layer_norm_epsilon", config.eps},
                       // Training here drops nothing.
                       {"attn_pdrop", 0.0},
                       {"embd_pdrop", 0.0},
                       {"resid_pdrop", 0.0}};
  return parsed.dump(2) + "\n";
}

}  // namespace gpt2
