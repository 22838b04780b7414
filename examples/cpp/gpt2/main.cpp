// SPDX-License-Identifier: MIT
// One program that trains a GPT-2, lets it write and serves it, on the CPU or a CUDA device, with
// the library's kernels.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "device.h"
#include "generate.h"
#ifdef GPT2_SERVE
#include "serve.h"
#endif
#include "tokenize.h"
#include "train.h"

int main(int count, char** arguments) {
  CLI::App app("GPT-2 in C++, without PyTorch");
  app.require_subcommand(1);
  gpt2::add_train(app);
  gpt2::add_generate(app);
#ifdef GPT2_SERVE
  gpt2::add_serve(app);
#endif
  gpt2::add_tokenize(app);
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const gpt2::NoDevice& error) {
    std::fprintf(stderr, "gpt2: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2: %s\n", error.what());
    return 1;
  }
}
