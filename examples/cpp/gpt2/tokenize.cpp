// SPDX-License-Identifier: MIT
#include "tokenize.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "llmc.h"
#include "options.h"
#include "tokenizer.h"

namespace gpt2 {

void add_tokenize(CLI::App& app) {
  struct Options {
    Path data, tokenizer, out;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "Turn a text into a file of tokens");
  command->add_option("--data", options->data, "The text")->required();
  add_tokenizer(*command, options->tokenizer);
  command->add_option("--out", options->out, "The file, as llm.c has them")->required();
  command->callback([options] {
    const Tokenizer tokenizer = Tokenizer::load(options->tokenizer);
    const std::vector<std::int32_t> tokens = tokenizer.encode(read_text(options->data));
    write_llmc_tokens(options->out, tokens);
    std::printf("%zu tokens: %s\n", tokens.size(), options->out.c_str());
  });
}

}  // namespace gpt2
