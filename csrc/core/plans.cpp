// SPDX-License-Identifier: MIT
#include "core/plans.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "core/log.h"
#include "core/times.h"

namespace transformer_kernels {
namespace {

class Recorder {
 public:
  void turn(bool on) {
    const std::lock_guard lock(mutex_);
    if (on) names_.clear();
    is_on_ = on;
  }
  bool is_on() const { return is_on_; }
  void add(const std::string& timed, std::span<const std::string_view> names, std::size_t by_rule) {
    std::string line(names[by_rule]);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (i != by_rule) line.append("\t").append(names[i]);
    }
    const std::lock_guard lock(mutex_);
    names_[timed] = line;
  }
  std::string lines() {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [timed, names] : names_) text += concat(timed, '\t', names, '\n');
    return text;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> names_;
  std::atomic<bool> is_on_ = false;
};

Recorder& recorder() {
  static Recorder plans;
  return plans;
}

}  // namespace

void record_plans(bool on) { recorder().turn(on); }

std::string recorded_plans() { return recorder().lines(); }

bool asks_for_plans() { return recorder().is_on() || has_times_of_plans(); }

std::size_t choose_plan(const std::string& timed, std::span<const std::string_view> names,
                        std::size_t by_rule) {
  if (recorder().is_on()) recorder().add(timed, names, by_rule);
  for (const Time& time : times_of(timed)) {
    const auto found = std::find(names.begin(), names.end(), time.name);
    if (found == names.end()) continue;
    if (log_dispatch()) {
      log_line(concat(timed, ": ", time.name, " runs: it took ", time.microseconds, " us here"));
    }
    return static_cast<std::size_t>(found - names.begin());
  }
  return by_rule;
}

}  // namespace transformer_kernels
