// SPDX-License-Identifier: MIT
#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace gpt2 {
namespace {

[[noreturn]] void fail(const Path& path, const std::string& what) {
  throw std::runtime_error(path.string() + ": " + what);
}

[[noreturn]] void fail_by_errno(const Path& path, const std::string& what) {
  fail(path, what + ": " + std::strerror(errno));
}

void synchronise_folder(const Path& path) {
  const Path folder = path.has_parent_path() ? path.parent_path() : Path(".");
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_by_errno(folder, "cannot be opened");
  const int result = fsync(descriptor);
  close(descriptor);
  if (result != 0) fail_by_errno(folder, "cannot be synchronised");
}

// Maps the states to each other one to one, and so the words.
std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  state = (state ^ word) * 0xd6e8feb86659fd93;
  return state ^ state >> 32;
}

}  // namespace

InputFile::InputFile(const Path& path)
    : path_(path),
      descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) fail_by_errno(path, "cannot be opened");
  struct stat status;
  if (fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  close(descriptor_);
  fail(path, "is not a file");
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(std::uint64_t offset, void* to, std::uint64_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) fail(path_, "is truncated");
  auto* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t count = pread(descriptor_, next, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_by_errno(path_, "cannot be read");
    if (count == 0) fail(path_, "has become shorter");
    next += count;
    offset += count;
    bytes -= count;
  }
}

std::string read_text(const Path& path) {
  const InputFile file(path);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

OutputFile::OutputFile(const Path& path)
    : path_(path),
      partial_(path.string() + ".partial"),
      descriptor_(open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail_by_errno(partial_, "cannot be opened");
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(partial_.c_str());
}

void OutputFile::write(const void* from, std::uint64_t bytes) {
  const auto* next = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t count = ::write(descriptor_, next, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_by_errno(partial_, "cannot be written");
    next += count;
    bytes -= count;
  }
}

void OutputFile::commit() {
  if (fsync(descriptor_) != 0) fail_by_errno(partial_, "cannot be synchronised");
  const int closed = close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 || std::rename(partial_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    unlink(partial_.c_str());
    errno = error;
    fail_by_errno(path_, "cannot be written");
  }
  synchronise_folder(path_);
}

void write_text(const Path& path, const std::string& text) {
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void Checksum::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min<std::size_t>(bytes.size(), sizeof(word_) - filled_);
    std::memcpy(reinterpret_cast<std::byte*>(&word_) + filled_, bytes.data(), count);
    bytes = bytes.subspan(count);
    filled_ += static_cast<int>(count);
    if (filled_ < static_cast<int>(sizeof(word_))) return;
    state_ = mix(state_, word_);
    word_ = 0;
    filled_ = 0;
  }
}

std::string Checksum::hex() const {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx",
                static_cast<unsigned long long>(mix(state_, word_)));
  return digits;
}

}  // namespace gpt2
