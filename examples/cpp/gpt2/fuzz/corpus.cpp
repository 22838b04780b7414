// SPDX-License-Identifier: MIT
// Parses files, each of the format that its folder is named after, and says of each whether it was
// read or refused.
#include <cstdio>
#include <exception>

#include "../files.h"
#include "parse.h"

int main(int count, char** arguments) {
  try {
    for (int i = 1; i < count; ++i) {
      const gpt2::Path path = arguments[i];
      const bool read = gpt2::parse(path.parent_path().filename(), gpt2::read_text(path));
      std::printf("%s: %s\n", path.filename().c_str(), read ? "read" : "refused");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2_corpus: %s\n", error.what());
    return 1;
  }
}
