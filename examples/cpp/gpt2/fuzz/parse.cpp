// SPDX-License-Identifier: MIT
#include "parse.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "../llmc.h"
#include "../parameters.h"
#include "../tokenizer.h"

namespace gpt2 {
namespace {

// A folder that is gone with its files at the end.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "gpt2_parse_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::logic_error("there is no temporary folder");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  // Writes a file without waiting for the disk.
  Path write(const char* name, std::string_view bytes) const {
    const Path path = path_ / name;
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) throw std::logic_error("a temporary file cannot be written");
    std::fwrite(bytes.data(), 1, bytes.size(), file);
    std::fclose(file);
    return path;
  }
  const Path& path() const { return path_; }

 private:
  Path path_;
};

constexpr tfk::DType kFloat32 = tfk::DType::kFloat32;

void parse_safetensors(std::string_view bytes) {
  const Folder folder;
  const Path path = folder.write("model.safetensors", bytes);
  // The model of the corpus.
  const Config config = {
      .vocabulary = 2, .positions = 2, .channels = 2, .layers = 1, .heads = 1, .eps = 1e-5};
  if (const SafeTensors file(path); file.metadata().contains("checksum")) file.verify();
  read_parameters(path, config, kFloat32);
}

void parse_llmc(std::string_view bytes) {
  const Folder folder;
  const Path path = folder.write("file.bin", bytes);
  if (is_llmc_tokens(path)) {
    read_llmc_tokens(path);
  } else {
    read_parameters(path, read_config(path), kFloat32);
  }
}

void parse_tokenizer(std::string_view bytes) {
  const Folder folder;
  const std::size_t end = std::min(bytes.find('\0'), bytes.size());
  folder.write("vocab.json", bytes.substr(0, end));
  folder.write("merges.txt", bytes.substr(std::min(end + 1, bytes.size())));
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  if (tokenizer.decode(tokenizer.encode(bytes)) != bytes) {
    throw std::logic_error("the tokens of a text are those of another one");
  }
}

}  // namespace

bool parse(const std::string& format, std::string_view file) {
  try {
    if (format == "safetensors") {
      parse_safetensors(file);
    } else if (format == "llmc") {
      parse_llmc(file);
    } else if (format == "tokenizer") {
      parse_tokenizer(file);
    } else {
      throw std::logic_error("there is no format " + format);
    }
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

}  // namespace gpt2
