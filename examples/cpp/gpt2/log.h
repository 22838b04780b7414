// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>

#include "event_file.h"
#include "train.h"

namespace gpt2 {

// The numbers that a step of training leaves.
struct StepReport {
  std::int64_t step = 0;
  float loss = 0, norm = 0;
  double lr = 0;
  std::chrono::duration<double> time{};       // of the update alone
  std::optional<float> validation_loss = {};  // where it was computed
};

// Writes steps to a table in CSV and to events for TensorBoard, and where standard error is a
// terminal to a line on it that each step overwrites.
class Log {
 public:
  // Steps from `first` on are taken out of what is there: they will be computed again.
  Log(const TrainOptions& options, std::int64_t first);
  ~Log();

  void add(const StepReport& report);

 private:
  void add_row(const StepReport& report);
  void add_events(const StepReport& report);
  void show(const StepReport& report);
  float tokens_per_second(const StepReport& report) const;

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::optional<EventFile> events_;
  std::int64_t steps_, tokens_per_step_;
  bool terminal_;
};

}  // namespace gpt2
