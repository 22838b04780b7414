// SPDX-License-Identifier: MIT
#include "generate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "options.h"
#include "sampler.h"
#include "unicode.h"

namespace gpt2 {
namespace {

struct GenerateOptions {
  ModelOptions model;
  std::string prompt = "\n";
  std::int64_t tokens = 64, count = 1;
  tfk::SamplingParameters sampling;
  std::int64_t seed = 1;
};

void write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Writes each text when it is finished; a single one as it grows.
void generate(const GenerateOptions& options) {
  const Gpt2 model = options.model.load();
  const Tokenizer tokenizer = options.model.load_tokenizer(model);
  const std::vector<std::int32_t> prompt = tokenizer.encode(options.prompt);
  const std::int64_t length = std::ssize(prompt) + options.tokens;
  if (prompt.empty()) throw std::runtime_error("--prompt has no tokens");
  if (length > model.config().positions) {
    throw std::runtime_error("the prompt and --tokens are " + std::to_string(length) +
                             " tokens, the model has " + std::to_string(model.config().positions) +
                             " positions");
  }

  const std::int64_t count = options.count, pages = (length + kPage - 1) / kPage;
  KvCache cache(model.config(), options.model.precision(), count * pages);
  std::vector<Sequence> sequences(count);
  std::vector<Sequence*> batch;
  std::vector<std::int32_t> inputs;
  std::vector<Draw> draws;
  for (std::int64_t i = 0; i < count; ++i) {
    cache.reserve(sequences[i], length);
    batch.push_back(&sequences[i]);
    inputs.insert(inputs.end(), prompt.begin(), prompt.end());
    draws.push_back({.parameters = options.sampling, .seed = options.seed + i});
  }

  std::vector<float> logits(count * model.config().vocabulary);
  std::vector<std::vector<std::int32_t>> texts(count, prompt);
  std::vector<bool> ended(count, false);
  CharacterStream characters;
  if (count == 1) write(characters.add(options.prompt));
  for (std::int64_t made = 0;
       made < options.tokens && std::find(ended.begin(), ended.end(), false) != ended.end();
       ++made) {
    model.step(cache, batch, inputs, logits);
    for (Draw& draw : draws) draw.position = sequences[0].length;
    inputs = sample(logits, draws);
    for (std::int64_t i = 0; i < count; ++i) {
      ended[i] = ended[i] || inputs[i] == tokenizer.end_of_text();
      if (!ended[i] && count == 1) write(characters.add(tokenizer.decode({&inputs[i], 1})));
      if (!ended[i]) texts[i].push_back(inputs[i]);
    }
  }
  for (const std::vector<std::int32_t>& text : texts) {
    if (count > 1) write(characters.add(tokenizer.decode(text)));
    write(characters.finish() + (count > 1 ? "\n\n" : "\n"));
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  const auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Continue a text");
  const auto number = numbers_of(*command);
  add_model(*command, options->model);
  command->add_option("--prompt", options->prompt, "The text that is continued");
  number("--tokens", options->tokens, "New tokens")->check(CLI::Range(1.0, 1e9));
  number("--count", options->count, "Texts, at once")->check(CLI::Range(1, 4096));
  number("--temperature", options->sampling.temperature, "0 takes the likeliest token")
      ->check(CLI::NonNegativeNumber);
  number("--top-k", options->sampling.top_k, "0 keeps all")->check(CLI::NonNegativeNumber);
  number("--top-p", options->sampling.top_p, "1 keeps all")->check(CLI::Range(0.0, 1.0));
  number("--seed", options->seed, "Of the first text; others count up");
  command->callback([options] { generate(*options); });
}

}  // namespace gpt2
