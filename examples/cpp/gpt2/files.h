// SPDX-License-Identifier: MIT
// Files that are read with checks and written as a whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace gpt2 {

using Path = std::filesystem::path;

// A file that is read at places of the caller's choice. Throws std::runtime_error, which names the
// file, where it cannot be opened or ends before what is wanted.
class InputFile {
 public:
  explicit InputFile(const Path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const Path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  void read(std::uint64_t offset, void* to, std::uint64_t bytes) const;

 private:
  Path path_;
  int descriptor_;
  std::uint64_t size_ = 0;
};

std::string read_text(const Path& path);

// A file that takes its name when it is complete and on the disk: written beside it, then renamed.
// Whoever is killed in between leaves the old file as it was; commit() throws where anything has
// failed, and a file that is not committed is removed.
class OutputFile {
 public:
  explicit OutputFile(const Path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* from, std::uint64_t bytes);
  void commit();

 private:
  Path path_;
  Path partial_;
  int descriptor_;
};

void write_text(const Path& path, const std::string& text);

// A sum over bytes in which each change of a word of 8 bytes shows.
class Checksum {
 public:
  void add(std::span<const std::byte> bytes);
  std::string hex() const;  // 16 digits

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15;
  std::uint64_t word_ = 0;  // its bytes so far
  int filled_ = 0;
};

}  // namespace gpt2
