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
  Sampling sampling{.seed = 1};
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
  KvCache cache(model, count * pages);
  std::vector<Sequence> sequences(count);
  std::vector<Sequence*> batch;
  std::vector<std::int32_t> inputs;
  std::vector<Sampling> samplings(count, options.sampling);
  for (std::int64_t i = 0; i < count; ++i) {
    cache.reserve(sequences[i], length);
    batch.push_back(&sequences[i]);
    inputs.insert(inputs.end(), prompt.begin(), prompt.end());
    samplings[i].seed += i;
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
    std::vector<Draw> draws;
    for (std::int64_t i = 0; i < count; ++i) {
      draws.push_back({samplings[i], texts[i], std::ssize(prompt)});
    }
    inputs.clear();
    for (const Drawn& drawn : sample(logits, draws)) inputs.push_back(drawn.chosen.token);
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

void add_field(CLI::App& command, const SamplingField& field, Sampling& sampling) {
  std::string name = std::string("--") + field.name;
  std::ranges::replace(name, '_', '-');
  const auto refusal = [&field](const std::string& text) -> std::string {
    double number = 0;
    const bool is_right = CLI::detail::lexical_cast(text, number) && field.fits(number);
    return is_right ? "" : std::string("expected ") + field.wanted + ", got " + text;
  };
  command.add_option(name, sampling.parameters.*field.parameter, field.help)->check(refusal);
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
  for (const SamplingField& field : kSamplingFields) add_field(*command, field, options->sampling);
  number("--seed", options->sampling.seed, "Of the first text; others count up");
  command->callback([options] { generate(*options); });
}

}  // namespace gpt2
