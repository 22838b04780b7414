// SPDX-License-Identifier: MIT
#include "event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace gpt2 {
namespace {

static_assert(std::endian::native == std::endian::little);

// CRC-32C (Castagnoli), its bits reflected.
std::uint32_t checksum(const std::string& bytes) {
  std::uint32_t sum = 0xffffffff;
  for (const char byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78 : 0);
  }
  return ~sum;
}

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// A sum as records hold it: that of bytes with a sum among them would be easy to get.
std::string masked(const std::string& bytes) {
  return bytes_of(std::rotr(checksum(bytes), 15) + 0xa282ead8);
}

// The fields of protobuf: a number that says which and of what kind, and the value.
enum Kind : std::uint8_t { kVarint = 0, kEight = 1, kBytes = 2, kFour = 5 };

std::string varint(std::uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text + static_cast<char>(value);
}

std::string key(int number, Kind kind) { return varint(number << 3 | kind); }

std::string field(int number, const std::string& bytes) {
  return key(number, kBytes) + varint(bytes.size()) + bytes;
}

std::string unique_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto count = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  return "events.out.tfevents." + std::to_string(count) + "." + std::to_string(getpid());
}

}  // namespace

EventFile::EventFile(const Path& folder, std::int64_t first) : path_(folder / unique_name()) {
  std::filesystem::create_directories(folder);
  file_.reset(std::fopen(path_.c_str(), "wbx"));
  if (file_ == nullptr) {
    throw std::runtime_error(path_.string() + ": cannot be opened: " + std::strerror(errno));
  }
  write(0, field(3, "brain.Event:2"));             // file_version
  write(first, field(7, key(1, kVarint) + '\1'));  // session_log with the status START
}

void EventFile::add(std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += field(1, field(1, tag) + key(2, kFour) + bytes_of(value));
  }
  write(step, field(5, summary));
}

// A record is whole in the file when this returns.
void EventFile::write(std::int64_t step, const std::string& content) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const std::string event = key(1, kEight) + bytes_of(now.count()) + key(2, kVarint) +
                            varint(static_cast<std::uint64_t>(step)) + content;
  const std::string length = bytes_of(static_cast<std::uint64_t>(event.size()));
  const std::string record = length + masked(length) + event + masked(event);
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() ||
      std::fflush(file_.get()) != 0) {
    throw std::runtime_error(path_.string() + ": cannot be written: " + std::strerror(errno));
  }
}

}  // namespace gpt2
