// SPDX-License-Identifier: MIT
// The files that TensorBoard reads: records of TensorFlow (a length and bytes, each with a masked
// CRC-32C), which hold messages of protobuf: a time, a step and scalars under their names.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "files.h"

namespace gpt2 {

struct Scalar {
  const char* tag;
  float value;
};

class EventFile {
 public:
  // A new file in the folder, which is made if need be. TensorBoard drops steps of older files from
  // `first` on. Throws std::runtime_error.
  EventFile(const Path& folder, std::int64_t first);

  void add(std::int64_t step, std::span<const Scalar> scalars);

 private:
  void write(std::int64_t step, const std::string& content);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  Path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace gpt2
