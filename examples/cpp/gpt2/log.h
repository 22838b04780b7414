// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>

#include "files.h"

namespace gpt2 {

// The numbers that a step of training leaves.
struct StepReport {
  std::int64_t step;
  float loss, norm;
  double lr;
};

// Writes steps to a table in CSV, and where standard error is a terminal to a line on it that each
// step overwrites.
class Log {
 public:
  // Rows of steps from `first` on are taken out of the file: they will be computed again.
  Log(const Path& path, std::int64_t first, std::int64_t steps, std::int64_t tokens_per_step);
  ~Log();

  void add(const StepReport& report);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::int64_t steps_, tokens_per_step_;
  bool terminal_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace gpt2
