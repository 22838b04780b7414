// SPDX-License-Identifier: MIT
// The numbers that Prometheus reads.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "scheduler.h"

namespace gpt2 {

class Histogram {
 public:
  void observe(double seconds);
  std::string text(const std::string& name, const std::string& meaning) const;

 private:
  static constexpr std::array kBounds = {0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0};
  std::array<std::int64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

class Metrics {
 public:
  // `endpoint` is a name of the server's, never a path of a client's.
  void count_answer(const std::string& endpoint, int status);
  void count_prompt(std::int64_t tokens);
  void count_token(double seconds_to_first);  // below 0: it is not the first
  void count_end(double seconds);             // of a completion
  void count_cancelled();

  std::string text(const Scheduler::Status& status) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t> requests_;
  std::int64_t prompt_tokens_ = 0, new_tokens_ = 0, cancelled_ = 0;
  Histogram first_token_, seconds_;
};

}  // namespace gpt2
